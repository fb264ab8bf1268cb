// The rewards of a step by group, what each taught, and what would have been with other settings.

import { fill, h, link, num, percent, section, short, table } from "console/dom.js";
import { ask, known, live } from "console/net.js";
import { credit, strip } from "console/replay.js";

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
  const told = found.groups.filter((group) => group.deviation > 0).length;
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
      h("p.quiet", {}, `Credited by ${method}, baseline ${found.method.baseline}, scale ${found.method.scale}. ${told} of ${found.groups.length} groups had different returns; only those teach.`),
      found.groups.length ? groups(found.groups, place.run) : h("p.quiet", {}, `The run has no step ${Number(step) + 1}.`), live && section("What if", form, answer)),
    shown: () => { if (live && ASKED.some((name) => place.query.get(name))) whatIf(form); },
  };
}

function groups(found, name) {
  const run = encodeURIComponent(name);
  return table("Groups", [["task", "wide"], ["returns", ""], ["mean", "right"], ["deviation", "right"], ["rollouts", ""]],
    found.slice().sort((a, b) => b.deviation - a.deviation).map((group) => [
      h("span", {}, short(group.shown, 50)), strip(group.rollouts.map((one) => one.return), null, ""),
      num(group.mean), group.deviation > 0 ? num(group.deviation) : h("span.quiet", {}, "all equal"),
      h("span.peers", {}, group.rollouts.map((one) => link(known("rollout", { run: name, id: one.id }), { href: `#/${run}/rollout/${encodeURIComponent(one.id)}`, title: one.id }, num(one.return, 2)))),
    ]));
}

function changes(made, run) {
  return [
    h("p", { role: "status" }, made.moved ? `${made.moved} of ${made.of} calls would have another advantage (${percent(made.moved / made.of)}). Calls with an advantage: ${made.credited[0]} before, ${made.credited[1]} after.` : "Nothing changes.", " ",
      h("span.quiet", {}, made.note)),
    made.changes.length ? table("Changes", [["agent", ""], ["before", "right"], ["after", "right"], ["moved by", "right"], ["rollout", ""]],
      made.changes.map((one) => [one.agent, one.before === null ? "none" : credit(one.before), one.after === null ? "none" : credit(one.after),
        credit((one.after || 0) - (one.before || 0)), h("a.mono", { href: `#/${run}/rollout/${encodeURIComponent(one.rollout)}` }, one.rollout)])) : null,
  ];
}
