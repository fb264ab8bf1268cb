// Where the time of a run goes, and one thing to change about each large part.

import { dot, h, lasting, marked, num, percent, section, table } from "console/dom.js";
import { ask } from "console/net.js";

export async function show(place) {
  const found = await ask("time", { run: place.run });
  if (!found.steps) return { element: h("div", {}, h("h1", {}, "Time"), h("p.quiet", {}, "No step has ended yet.")) };
  const colour = (index) => `var(--c${(index % 6) + 1})`;
  const shares = (title, list) => list.length ? section(title, table(title, [["name", ""], ["times", "right"], ["together", "right"], ["each", "right"], ["longest", "right"]],
    list.map((one) => [one.name, num(one.count), lasting(one.seconds), lasting(one.seconds / one.count), lasting(one.longest)]))) : null;
  const latest = `of steps ${found.latest[0]} to ${found.latest.at(-1)}`;
  return { element: h("div", {}, h("h1", {}, `Time: ${lasting(found.seconds)} in ${num(found.steps)} steps`),
    h("div.shares", { role: "img", "aria-label": found.parts.map((one) => `${one.name} ${percent(one.share)}`).join(", ") },
      found.parts.map((one, index) => h("i", { style: { flex: String(Math.max(one.share, 0.001)), background: colour(index) } }))),
    h("p.key", {}, found.parts.map((one, index) => h("span", {}, dot(colour(index)), `${one.name} ${percent(one.share)}, ${lasting(one.seconds / found.steps)} a step`))),
    h("p.quiet", {}, found.engine !== null && `The engine or the optimizer was busy ${percent(found.engine)} of the time. `,
      found.cores !== null && `The trainer's process used ${percent(found.cores)} of the processor's cores. `,
      found.straggling.whole > 0 && `Waiting for the last tenth of the rollouts: ${percent(found.straggling.seconds / found.straggling.whole)} of collecting, ${latest}.`),
    found.findings.length ? section("What to change", h("ul.findings", {}, found.findings.map((one) => h("li", {}, h("b", {}, marked(one.message)), h("div.quiet", {}, marked(one.advice)))))) : null,
    found.agents.length > 0 && h("p.quiet", {}, "Calls overlap, so together they may take longer than the run."), shares(`Calls by agent ${latest}`, found.agents), shares(`Tools ${latest}`, found.tools)) };
}
