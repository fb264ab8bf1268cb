// The rewards of a step by group, what each taught, and what would have been with other settings.

import { fill, h, link, num, section, short, table } from "console/dom.js";
import { ask, known, live } from "console/net.js";
import { credit, strip } from "console/replay.js";
import { term } from "console/terms.js";

const ASKED = ["credit", "baseline", "scale", "air", "reward"];

export async function show(place) {
  const run = encodeURIComponent(place.run);
  const step = place.query.get("step") || "0";
  const found = await ask("step", { run: place.run, step });
  const answer = h("div", { "aria-live": "polite" });
  const go = (number) => { location.hash = `#/${run}/why?step=${number}`; };
  const at = found.steps.indexOf(Number(step));
  const picker = h("p", {},
    h("button", { type: "button", disabled: at <= 0, onclick: () => go(found.steps[at - 1]), "aria-label": "Step before" }, "←"), " ",
    h("label", {}, "step ", h("select", { onchange: (event) => go(event.target.value) }, found.steps.map((number) => h("option", { value: number, selected: String(number) === step }, number + 1)))), " ",
    h("button", { type: "button", disabled: at < 0 || at + 1 >= found.steps.length, onclick: () => go(found.steps[at + 1]), "aria-label": "Step after" }, "→"));
  const told = found.groups.filter((group) => group.taught).length;
  const method = found.method.method.split(":").at(-1);

  async function whatIf(form) {
    try { fill(answer, changes(await ask("whatif", { run: place.run, step, ...Object.fromEntries(new FormData(form)) }), run)); }
    catch (error) { fill(answer, h("p.error", { role: "alert" }, error.message)); }
  }
  const pick = (name, label, values) => h("label", {}, label, h("select", { name },
    [h("option", { value: "own" }, "as the run had it"), ...values.map((value) => h("option", { value, selected: place.query.get(name) === value }, value))]));
  const form = h("form.filters", { "aria-label": "What if", onsubmit: (event) => { event.preventDefault(); whatIf(form); } },
    pick("credit", "credit method", found.credits), pick("baseline", "baseline", found.baselines), pick("scale", "scale", found.scales),
    pick("air", "automatic rewards", ["none", "default"]),
    found.rewards.length > 0 && pick("reward", "reward function", found.rewards), h("button", {}, "What if?"));
  return {
    element: h("div", {}, h("h1", {}, "Why"), picker,
      h("p", {}, "Each line is a ", term("group"), ": the rollouts of one task, with the ", term("return"), " of each. ", `${told} of ${found.groups.length} groups differed where they are compared (an agent with rewards of its own by those), and only these teach. Click a number to see the rollout, and why each of its calls got its `, term("advantage"), "."),
      h("p.quiet", {}, term("credit method"), ` ${method.toLowerCase()}${found.method.about ? `: ${found.method.about.replace(/^[^:]*: /, "")}` : ""} `, ...divided(found.method)),
      found.groups.length ? groups(found.groups, place.run) : h("p.quiet", {}, `The run has no step ${Number(step) + 1}.`), live && section("What if", form, answer)),
    shown: () => { if (live && ASKED.some((name) => place.query.get(name))) whatIf(form); },
  };
}

/** What is subtracted from a reward and what the difference is divided by, as words where the method has its own. */
function divided({ baseline, scale }) {
  const less = { mean: "the mean", leave_one_out: "the mean of the others" };
  const by = { std: "the standard deviation", batch: "that of the whole step" };
  return [term("baseline"), `: ${less[baseline] ?? baseline}. `, term("spread"), `: ${by[scale] ?? scale}.`];
}

function groups(found, name) {
  const run = encodeURIComponent(name);
  return table("Groups", [["task", "wide"], ["least to most, mean dashed", ""], ["mean", "right"], [term("spread"), "right"], ["rollouts", ""]],
    found.slice().sort((a, b) => b.deviation - a.deviation).map((group) => [
      h("span", {}, short(group.shown, 50)), strip(group.rollouts.map((one) => one.return), null, ""),
      num(group.mean), spread(group),
      h("span.peers", {}, group.rollouts.map((one) => link(known("rollout", { run: name, id: one.id }), { href: `#/${run}/rollout/${encodeURIComponent(one.id)}`, title: one.id }, num(one.return, 2)))),
    ]));
}

/** The spread of a group's returns; they may be equal although calls or agents differ, and the other way round. */
function spread({ deviation, taught }) {
  if (deviation > 0) return taught ? num(deviation) : [num(deviation), h("div.quiet", {}, "not compared")];
  return h("span.quiet", {}, taught ? "agents or calls differ" : "all equal");
}

function changes(made, run) {
  return [
    h("p", { role: "status" }, made.conclusion, made.changes.length ? ` The ${made.changes.length} that move most: ` : " ",
      h("span.quiet", {}, made.note)),
    made.changes.length ? table("Changes", [["agent", ""], ["reply", "wide"], ["reward", "right"], ["advantage before", "right"], ["after", "right"], ["moved by", "right"], ["rollout", ""]],
      made.changes.map((one) => [one.agent, h("span.mono", { title: one.reply }, short(one.reply, 70)), num(one.reward), one.before === null ? "none" : credit(one.before), one.after === null ? "none" : credit(one.after),
        credit((one.after || 0) - (one.before || 0)), h("a.mono", { href: `#/${run}/rollout/${encodeURIComponent(one.rollout)}` }, one.rollout)])) : null,
  ];
}
