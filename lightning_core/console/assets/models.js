// Versions of the weights and prompts: which is served, and going back.

import { ago, h, num, table } from "console/dom.js";
import { ask, live, tell } from "console/net.js";
import { term } from "console/terms.js";

const NUMBERS = ["step", "reward", "sampled", "greedy"];

export async function show(place) {
  const name = place.query.get("name") || "policy";
  const { versions, choices, served, weights } = await ask("models", { run: place.run, name });
  const shown = NUMBERS.filter((key) => versions.some((one) => key in one.metrics));
  const note = h("p.quiet", { role: "status" });
  const serve = (one) => h("button", { type: "button", disabled: !live, onclick: async () => {
    if (!confirm(`Make version ${one.version} of ${name} the current one? A gateway of the run answers by it within a second; without one it is what agentlightning serve serves.`)) return;
    try { await tell("choose", { run: place.run, name, version: one.version }); window.dispatchEvent(new Event("hashchange")); }
    catch (error) { note.textContent = error.message; }
  } }, `Make ${one.version} current`);
  return { element: h("div", {}, h("h1", {}, `Versions of ${name}`),
    weights.length > 1 ? h("p", {}, weights.map((one) => [h("a", { href: `#/${encodeURIComponent(place.run)}/models?name=${encodeURIComponent(one)}` }, one), " "])) : null,
    h("p.quiet", {}, served ? "A gateway serves the current version now." : "No gateway is up: the current version is what agentlightning serve serves."), note,
    table("Versions", [["version", "right"], ["", ""], ["parent", "right"], ["by", ""], ...shown.map((key) => [key === "reward" ? term("training reward") : key, "right"]), ["made", "right"]],
      versions.slice().reverse().map((one) => [num(one.version), one.current ? h("b.good", {}, served ? "● served" : "● current") : one.uri === null ? h("span.quiet", {}, "deleted") : serve(one),
        one.parent ?? "–", one.author, ...shown.map((key) => num(one.metrics[key])), ago(one.created_at)])),
    choices.length ? [h("h2", {}, "Choices"), h("ul", {}, choices.map((one) => h("li", {}, `${one.author} chose version ${one.uri}${one.parent === null ? "" : ` in place of ${one.parent}`}, ${ago(one.created_at)}`)))] : null) };
}
