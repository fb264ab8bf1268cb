// Two versions of weights or prompts on the same tasks, played by the run's own app in a run of its own.

import { ago, h, num, renew, reward, section, short, signed, table } from "console/dom.js";
import { ask, live, tell } from "console/net.js";

export async function show(place) {
  if (!live) return { element: h("div", {}, h("h1", {}, "Sandbox"), h("p.quiet", {}, "A saved page tries nothing. Open the run with: agentlightning console")) };
  const found = await ask("sandbox", { run: place.run });
  const note = h("p", { role: "status" }), trials = h("div", {}, listed(found));
  const names = Object.keys(found.prompts);
  const act = async (question, name, given) => {
    if (!confirm(question)) return;
    try { note.className = "quiet"; note.textContent = said(name, await tell(name, { run: place.run, ...given })); await tick(); }
    catch (error) { note.className = "error"; note.textContent = error.message; }
  };
  const tick = async () => {
    const newer = await ask("sandbox", { run: place.run });
    renew(trials, listed(newer));
    for (const [select, letter, name] of selects) renew(select, options(letter, name === "policy" ? newer.versions : newer.prompts[name]));
  };

  const selects = [];
  const options = (letter, versions) => versions.slice().reverse().map((one, index) =>
    h("option", { value: one.version, selected: letter === "b" ? one.current : index === versions.length - 1 }, `${one.version}${one.current ? ", current" : ""} (${one.author})`));
  const pick = (letter, name, versions) => {
    const select = h("select", { name: `${letter}/${name}` }, options(letter, versions));
    selects.push([select, letter, name]);
    return h("label", {}, name, select);
  };
  const arm = (letter) => h("fieldset", {}, h("legend", {}, letter.toUpperCase()), pick(letter, "policy", found.versions), names.map((name) => pick(letter, name, found.prompts[name])));
  const form = h("form.filters", { "aria-label": "A trial", onsubmit: (event) => {
    event.preventDefault();
    const given = new FormData(form), tasks = given.getAll("task"), samples = given.get("samples");
    const side = (letter) => JSON.stringify({ version: Number(given.get(`${letter}/policy`)), prompts: Object.fromEntries(names.map((name) => [name, Number(given.get(`${letter}/${name}`))])) });
    act(`Run ${found.script} on ${tasks.length} tasks, ${samples} times by A and by B? It runs your app on this machine.`, "try", { a: side("a"), b: side("b"), tasks: tasks.join("\n"), samples });
  } }, arm("a"), arm("b"),
    h("label", {}, "tasks", h("select", { name: "task", multiple: true, size: 6 }, found.tasks.map((one, index) => h("option", { value: one.id, selected: index < 10 }, short(one.shown, 70))))),
    h("label", {}, "times each", h("input", { name: "samples", type: "number", min: 1, max: 50, value: 2, style: { width: "5em" } })),
    h("button", {}, "Try"));

  const text = h("textarea", { name: "text", rows: 5, "aria-label": "The prompt's text" });
  const which = h("select", { name: "name", onchange: () => { text.value = latest(); } }, names.map((name) => h("option", { value: name }, name)));
  const latest = () => found.prompts[which.value].at(-1)?.text ?? found.seeds[which.value];
  if (names.length) text.value = latest();
  const writing = h("form.writing", { "aria-label": "A prompt", onsubmit: (event) => {
    event.preventDefault();
    act(`Save this text as a new version of ${which.value}? It is used only once it is made the current one.`, "save", { name: which.value, text: text.value });
  } }, h("label", {}, "prompt ", which), text, h("button", {}, "Save as a version"));
  return { element: h("div", {}, h("h1", {}, "Sandbox"), h("p.quiet", {}, `A trial plays the app of the run on held-out tasks by two versions. It is kept as a run of its own and teaches nothing; at most ${num(found.most)} rollouts.`),
    form, note, trials, names.length ? section("Write a prompt", writing) : h("p.quiet", {}, "To try prompts too, declare them at the trainer: prompts={\"name\": \"text\"}.")), tick };
}

function said(name, answer) {
  return name === "try" ? `${answer.trial} has begun.` : `Version ${answer.version} of ${answer.name} is saved.`;
}

function listed(found) {
  const shown = Object.fromEntries(found.tasks.map((one) => [one.id, one.shown]));
  const side = ([version, prompts]) => [`policy ${version}`, ...Object.entries(prompts).map(([name, number]) => `${name} ${number}`)].join(", ");
  return found.trials.map((one) => section(`A ${side(one.arms[0])} against B ${side(one.arms[1])}`,
    h("p", {}, h(`span.status.${one.status}`, {}, one.status), ` ${one.ended} of ${one.rollouts} rollouts · ${ago(one.created_at)} · `,
      h("a", { href: `#/${encodeURIComponent(one.id)}/rollouts` }, "its rollouts")),
    one.problem && h("pre.error", {}, one.problem),
    one.failed.map(({ failed, rollouts, error }, arm) => failed > 0 && h("p.error", {}, `${failed} of ${"AB"[arm]}'s ${rollouts} rollouts failed${failed === rollouts ? ", so there is nothing to compare" : " and count 0"}: ${error}`)),
    one.difference !== null && h("p.verdict", {}, `A ${num(one.means[0], 3)}, B ${num(one.means[1], 3)}: ${signed(one.difference, 3)} for B`,
      one.low === null ? " (three tasks are needed for an interval)" : ` (95 % interval ${signed(one.low, 3)} to ${signed(one.high, 3)}${one.low <= 0 && one.high >= 0 ? ", so it may be chance" : ""})`),
    Object.keys(one.tasks).length ? table("Tasks", [["task", ""], ["A", "right"], ["B", "right"]], Object.entries(one.tasks).map(([id, [a, b]]) => [short(shown[id] ?? id, 80), reward(a), reward(b)])) : null));
}
