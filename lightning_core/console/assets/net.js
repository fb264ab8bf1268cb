// Where answers come from: the console's server, or, in a saved page, the page itself.

const held = document.getElementById("answers");
const answers = held ? JSON.parse(held.textContent) : null;

/** Whether a server answers, so that what is shown can become newer. */
export const live = answers === null;

export function address(name, query) {
  const asked = new URLSearchParams();
  for (const [key, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") asked.append(key, one);
  asked.sort();
  return `/api/${name}?${asked}`;
}

/** Whether there is such an answer. */
export function known(name, query = {}) {
  return live || address(name, query) in answers;
}

/** The answer. Throws an Error whose message a person can read. */
export async function ask(name, query = {}) {
  const at = address(name, query);
  if (!live) {
    if (at in answers) return answers[at];
    throw new Error("This is not in the saved page. Open the run with: agentlightning console");
  }
  return read(await fetch(at, { credentials: "same-origin" }).catch(() => null));
}

/** Have the server do what changes something. */
export async function tell(name, given) {
  if (!live) throw new Error("A saved page changes nothing.");
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given) };
  return read(await fetch(`/api/${name}`, options).catch(() => null));
}

async function read(reply) {
  if (reply === null) throw new Error("The console's server is away. Start it again: agentlightning console");
  const answer = await reply.json().catch(() => ({ error: `The server answered ${reply.status}.` }));
  if (!reply.ok) throw new Error(answer.error || `The server answered ${reply.status}.`);
  return answer;
}
