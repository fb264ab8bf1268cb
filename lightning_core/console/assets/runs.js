// All runs of the shelf, each with how it stands.

import { ago, h, num, renew, short, table } from "console/dom.js";
import { ask } from "console/net.js";

export async function show(place, known) {
  const element = h("div", {}, rows(known));
  return { element, tick: async () => renew(element, rows(await ask("runs"))) };
}

function rows(known) {
  return [
    h("h1", {}, "Runs"),
    h("p.quiet", {}, known.length ? "Open a run to see whether it learns, and why. Reward: held-out and greedy where there are two evaluations, else that of training." : "No run yet. Begin one with: agentlightning train SCRIPT"),
    table("Runs", [["run", ""], ["status", ""], ["reward, first → last", "right"], ["training reward", ""], ["steps", "right"], ["rollouts", "right"], ["model", ""], ["begun", "right"]],
      known.map((one) => [
        h("a", { href: `#/${encodeURIComponent(one.name)}` }, one.name),
        [h(`span.status.${(one.status || "unread").replace(" ", "-")}`, {}, one.error || one.status || "not read"), one.reason && h("div.bad.small", { title: one.reason }, short(one.reason, 90))],
        change(one.change),
        one.rewards ? spark(one.rewards) : "",
        num(one.steps), num(one.rollouts), one.model || "–", ago(one.created_at),
      ])),
  ];
}

/** A run's reward: first and last, or that of its only evaluation. */
function change(found) {
  if (!found) return "–";
  if (found.kind === "once") return num(found.last);
  return [`${num(found.first)} → ${num(found.last)}`, found.kind === "training" ? h("span.quiet", {}, " (training)") : ""];
}

/** A curve as small as a word. */
export function spark(values, width = 120, height = 22) {
  if (values.length < 2) return "";
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((value, place) =>
    `${((place / (values.length - 1)) * (width - 2) + 1).toFixed(1)},${(height - 2 - ((value - low) / span) * (height - 4)).toFixed(1)}`);
  return h("svg.spark", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `from ${num(values[0])} to ${num(values.at(-1))}` },
    h("path", { d: `M${points.join("L")}` }));
}
