// Go on from a call otherwise: with another reply of the policy, with one's own reply, or from another prompt.

import { ago, fill, h, hue, dot, num, renew, reward, short, signed } from "console/dom.js";
import { ask, live, tell } from "console/net.js";

const WAYS = [["reply", "Edit the reply"], ["prompt", "Edit the prompt"], ["none", "Sample others"]];
const NAMED = { reply: "your reply", prompt: "your prompt", none: "other replies" };

/** The part of a call's page where one goes on otherwise; null where the gateway can't answer again. */
export function panel(place, node, names) {
  if (!live || node.endpoint || node.status !== "completed") return null;
  const asked = { run: place.run, id: place.id, call: node.id };
  const form = h("div", {}), note = h("p", { role: "status" }), results = h("div", {}), ways = h("div.filters", {});
  let known = null;

  async function look() {
    known = await ask("forks", asked);
    renew(results, known.trials.map((one) => trial(one, known.reward, names)));
    if (!ways.childNodes.length)
      fill(ways, WAYS.map(([kind, title]) => h("button", { type: "button", disabled: Boolean(known.refused[kind]), title: known.refused[kind], onclick: () => fill(form, written(kind)) }, title)));
  }

  function written(kind) {
    const text = kind === "none" ? null : h("textarea", { name: "text", rows: 8, required: true, "aria-label": kind === "reply" ? "The reply" : "The prompt, as JSON" }, known[kind]);
    const samples = h("input", { name: "samples", type: "number", min: 1, max: known.most, value: known.samples, required: true, style: { width: "5em" } });
    const command = h("pre", {});
    const say = () => { command.textContent = command_of(kind, text?.value, samples.value); };
    const made = h("form.writing", { "aria-label": "Go on from here", oninput: say, onsubmit: async (event) => {
      event.preventDefault();
      if (!known.script || !confirm(`Run ${known.script} ${samples.value} times from this call on? It runs your app on this machine.`)) return;
      try { await tell("fork", { ...asked, kind, text: text ? text.value : "", samples: samples.value }); note.textContent = note.className = ""; fill(form); await look(); }
      catch (error) { note.className = "error"; note.textContent = error.message; }
    } },
      kind === "reply" && h("p.quiet", {}, "Your app gets this text in place of the reply. A reply that calls tools is an assistant's message as JSON."),
      kind === "prompt" && h("p.quiet", {}, "The policy gets this prompt at this call. Your app does not know of it: its later requests are its own."),
      text, h("label", {}, "rollouts ", samples),
      known.script ? h("button", {}, "Continue") : [h("p.quiet", {}, "To run it from here, start the console with --script.", known.command && " Or copy this command:", known.command && kind === "prompt" && " (save the prompt as prompt.json)"), known.command && command]);
    say();
    return made;
  }

  function command_of(kind, text, samples) {
    const edit = { reply: ["--reply", text], prompt: ["--prompt", "prompt.json"], none: [] }[kind];
    return [...(known.command ?? []), "--samples", samples, ...edit, ...known.arguments].map(quoted).join(" ");
  }

  const element = h("section.forks", { "aria-label": "Go on from here" }, h("h3.divide", {}, "What if? Go on from this call"), ways, form, note, results);
  look().catch((error) => { note.className = "error"; note.textContent = error.message; });
  return { element, tick: async () => { if (known?.trials.some((one) => one.status === "running")) await look(); } };
}

/** A word of a command as a shell reads it. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function trial(one, recorded, names) {
  const run = encodeURIComponent(one.run);
  const whole = (fork) => [
    h("ol", {}, fork.calls.map((call) => h("li", {}, dot(hue(names, call.agent)), h("b", {}, call.agent), h("span.tag", {}, call.written ? "your reply" : call.version === null ? call.status : `version ${call.version}`), h("pre", {}, call.said)))),
    fork.error && !one.problems.length && h("pre.error", {}, fork.error),
    h("a", { href: `#/${run}/rollout/${encodeURIComponent(fork.id)}` }, "the whole rollout")];
  return h("div.trial", {},
    h("p", {}, h("b", {}, NAMED[one.kind]), " ", h(`span.status.${one.status}`, {}, one.status), h("span.quiet", {}, ` ${one.ended} of ${one.rollouts} rollouts · ${ago(one.created_at)}`)),
    one.problem && h("pre.error", {}, one.problem),
    one.mean !== null && h("p.verdict", {}, `reward on record ${num(recorded)}, with ${NAMED[one.kind]} `, reward(one.mean),
      one.rollouts > 1 && ` (95 % interval ${num(one.interval[0])} to ${num(one.interval[1])})`, `: difference ${signed(one.difference)}, above 0 the record was better`),
    one.problems.map((problem) => h("p.error", {}, problem)),
    one.prompt && h("details", {}, h("summary", {}, "The prompt"), h("pre", {}, JSON.stringify(one.prompt, null, 2))),
    one.rollouts === 1 ? whole(one.forks[0]) : one.forks.map((fork) => h("details", {},
      h("summary", {}, fork.reward === null ? fork.status : reward(fork.reward), " ", short(fork.calls.map((call) => call.said).join(" → "), 80)), whole(fork))));
}
