// Runs side by side: what differs in their settings, their curves on one axis, the same held-out tasks; and advice.

import { h, num, reward, section, short, signed, table } from "console/dom.js";
import { ask, live } from "console/net.js";
import { chart } from "console/charts.js";

const TITLES = { reward: "Training reward of each step", entropy: "Entropy, nats per token", grad_norm: "Gradient norm" };

export async function show(place, known) {
  const script = known.find((one) => one.name === place.run)?.script;
  const alike = live ? known.filter((one) => one.script === script) : known;
  const chosen = place.query.getAll("with").length ? place.query.getAll("with") : alike.slice(0, 4).map((one) => one.name);
  if (known.length < 2) return { element: h("div", {}, h("h1", {}, "Compare"), h("p", {}, "There is one run here. To compare, train once more with another setting, then open the folder of both:"), h("pre", {}, `agentlightning train ${script || "SCRIPT"} --set seed=2\nagentlightning console FOLDER_OF_RUNS`)) };
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
        Object.entries(made.settings).map(([name, values]) => [name, ...values.map((value) => setting(value))])) : h("p.quiet", {}, "None.")),
      made.held_out.some((one) => one.tasks) && section("Held-out reward, greedy", table("Held-out reward", [["run", ""], ["tasks", "right"], ["reward", "right"], [`against ${made.runs[0]}`, "wide"]],
        made.held_out.map((one, place) => [made.runs[place], num(one.tasks), num(one.mean), place ? against(one) : "–"]))),
      section("Held-out tasks that differ", made.tasks.length ? table("Tasks", [["task", "wide"], ...columns.slice(1)], made.tasks.map((one) => [h("span", { title: one.task }, short(one.shown, 80)), ...one.rewards.map((value) => reward(value))])) : h("p.quiet", {}, "None."),
        h("p.quiet", {}, `${num(made.shared)} tasks were given to all of them; on ${num(made.equal)} the reward was equal.`)),
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

function setting(value) {
  const text = value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value);
  return h("span", { title: text }, short(text, 60));
}

/** How much more the run earned than the first one, on the tasks of both. */
function against({ shared, difference, low, high }) {
  if (!shared) return h("span.quiet", {}, "no task in common");
  const sure = low === null ? "three tasks are needed for an interval" : `95 % interval ${signed(low)} to ${signed(high)}${low <= 0 && high >= 0 ? ", so it may be chance" : ""}`;
  return `${signed(difference)} on ${num(shared)} tasks (${sure})`;
}
