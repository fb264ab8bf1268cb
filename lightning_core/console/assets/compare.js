// Runs side by side: what differs in their settings, their curves on one axis, the same held-out tasks; and advice.

import { fill, h, num, reward, section, short, table } from "console/dom.js";
import { ask, live } from "console/net.js";
import { chart } from "console/charts.js";

const TITLES = { reward: "Reward", entropy: "Entropy, nats per token", grad_norm: "Gradient norm" };

export async function show(place, known) {
  const chosen = place.query.getAll("with").length ? place.query.getAll("with") : known.slice(0, 4).map((one) => one.name);
  if (known.length < 2) return { element: h("div", {}, h("h1", {}, "Compare"), h("p.quiet", {}, "There is one run here. Open a folder of runs: agentlightning console runs")) };
  const [made, advice] = live ? await Promise.all([ask("compare", { with: chosen }), ask("advice")]) : [await ask("compare", { with: chosen }), []];
  const form = h("form.filters", { "aria-label": "Runs to compare", onchange: () => {
    const query = new URLSearchParams(new FormData(form).getAll("with").map((name) => ["with", name]));
    location.hash = `#/${encodeURIComponent(place.run)}/compare?${query}`;
  } }, known.map((one) => h("label", {}, h("span", {}, h("input", { type: "checkbox", name: "with", value: one.name, checked: chosen.includes(one.name) }), " ", one.name))));
  const grid = h("div.charts", {});
  const columns = [["", ""], ...made.runs.map((name) => [name, "right"])];
  return {
    element: h("div", {}, h("h1", {}, "Compare"), form, grid,
      section("Settings that differ", Object.keys(made.settings).length ? table("Settings", columns,
        Object.entries(made.settings).map(([name, values]) => [name, ...values.map((value) => value === null ? "–" : short(typeof value === "string" ? value : JSON.stringify(value), 60))])) : h("p.quiet", {}, "None.")),
      section("Held-out tasks on which they part", made.tasks.length ? table("Tasks", columns, made.tasks.map((one) => [one.task, ...one.rewards.map((value) => reward(value))])) : h("p.quiet", {}, "None."),
        h("p.quiet", {}, `${num(made.equal)} tasks came out equal.`)),
      advice.length ? section("What these runs say about settings", h("ul.findings", {}, advice.map((one) => h("li", {}, one.message)))) : null),
    shown: () => {
      for (const [name, runs] of Object.entries(made.curves)) {
        const steps = [...new Set(runs.flatMap((points) => points.map(([step]) => step)))].sort((a, b) => a - b);
        const series = runs.map((points, index) => {
          const at = new Map(points);
          return { label: made.runs[index], colour: `--c${(index % 6) + 1}`, values: steps.map((step) => at.get(step) ?? null) };
        });
        const drawn = chart(TITLES[name], steps, series, { low: 0 });
        grid.append(drawn.element);
        drawn.set(steps, series);
      }
    },
  };
}
