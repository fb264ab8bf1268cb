// One run: is it learning, and if not, why? New steps are added every two seconds.

import { ago, dot, fill, h, hue, lasting, num, percent, renew, section, table } from "console/dom.js";
import { ask } from "console/net.js";
import { chart, smooth } from "console/charts.js";
import { term } from "console/terms.js";

/** The charts: title, series as [metric or prefix*, label], and how they are drawn. One without numbers is left out. */
const CHARTS = [
  ["Training reward by agent", [["agent/*/reward", ""]], { low: 0, word: "training reward" }],
  ["Entropy, nats per token", [["entropy", "all tokens"], ["sampled_entropy", "trained tokens"]], { low: 0, word: "entropy" }],
  ["Groups that teach nothing", [["zero_variance_groups", "equal rewards"], ["unusable_groups", "no usable rewards"]], { low: 0, word: "equal rewards" }],
  ["Failed rollouts", [["failures", "failed"], ["rollouts_without_calls", "without calls"]], { low: 0 }],
  ["Automatic intermediate rewards", [["air_reward", "mean of a rollout"]], { word: "intermediate rewards" }],
  ["Signals by rule", [["air/*", ""]], { low: 0 }],
  ["Gradient norm", [["grad_norm", "policy"], ["value_grad_norm", "critic"]], { low: 0, word: "gradient norm" }],
  ["Gradient norm by policy", [["policy/*/grad_norm", ""]], { low: 0, word: "gradient norm" }],
  ["Version of each policy", [["policy/*/policy_version", ""]], { low: 0, word: "version" }],
  ["Clipped share", [["clip_share", "policy"], ["bounded_share", "off-policy bound"]], { low: 0, word: "clipped share" }],
  ["Divergence from the start, nats", [["kl_reference", "KL"]], { word: "divergence" }],
  ["Loss", [["loss", "policy"], ["value_loss", "critic"]], { word: "loss" }],
  ["Gap between engine and training, nats", [["logprob_gap_mean", "mean"], ["logprob_gap_max", "most"]], { low: 0, word: "engine gap" }],
  ["Staleness, updates", [["staleness_mean", "mean"], ["staleness_max", "most"]], { low: 0, word: "staleness" }],
  ["Seconds of a step", [["step_seconds", "whole step"], ["collect_seconds", "collecting"], ["update_seconds", "updating"], ["publish_seconds", "publishing"]], { low: 0, unit: " s" }],
  ["Tokens", [["unmerged_tokens", "prompts and replies"], ["forward_tokens", "computed"], ["tokens", "trained"]], { low: 0 }],
  ["Tokens at the training service, so far", [["service_prompt_tokens", "read"], ["service_sampled_tokens", "sampled"], ["service_trained_tokens", "trained"]], { low: 0 }],
  ["Calls by agent", [["agent/*/calls", ""]], { low: 0 }],
  ["Sampled tokens by agent", [["agent/*/completion_tokens", ""]], { low: 0 }],
];

/** Numbers of an agent that newer steps add to. */
const SUMS = ["calls", "completion_tokens", "transitions_with_advantage"];

export async function show(place) {
  let run = await ask("run", { run: place.run });
  const top = h("div", {}), grid = h("div.charts", {}), below = h("div", {});
  const charts = new Map();
  const onstep = (step) => { location.hash = `#/${encodeURIComponent(place.run)}/rollouts?split=${step ? `train&step=${step - 1}` : "validation&step=0"}`; };

  function draw() {
    for (const [title, series, given] of pictures(run)) {
      if (!charts.has(title)) {
        const made = chart(title, given.steps ?? run.steps, series, { ...given, onstep });
        charts.set(title, made);
        grid.append(made.element);
      }
      charts.get(title).set(given.steps ?? run.steps, series);
    }
    if (!grid.children.length || grid.firstChild.nodeName === "P")
      renew(grid, h("p.quiet", {}, run.status === "running" ? "No step has ended yet. This page fills by itself." : "No step has ended."));
  }

  function tell() {
    renew(top, summary(run));
    renew(below, evaluations(run), agents(run), members(run), origin(run));
  }

  async function tick() {
    const newer = await ask("run", { run: place.run, since: run.steps.length ? run.steps.at(-1) : null });
    const empty = !run.steps.length && newer.steps.length;
    const changed = newer.steps.length || newer.evaluations.length !== run.evaluations.length || newer.status !== run.status;
    run = join(run, newer);
    if (empty) grid.replaceChildren();
    if (changed) draw();
    tell();
  }

  return { element: h("div", {}, top, grid, below), shown: () => { draw(); tell(); }, tick, status: () => run.status };
}

/** The run with the steps that are newer. */
function join(run, newer) {
  const columns = {};
  const before = run.steps.length, more = newer.steps.length;
  for (const name of new Set([...Object.keys(run.columns), ...Object.keys(newer.columns)]))
    columns[name] = [...(run.columns[name] || Array(before).fill(null)), ...(newer.columns[name] || Array(more).fill(null))];
  const agents = new Map(run.agents.map((one) => [one.name, one]));
  for (const one of newer.agents) {
    const had = agents.get(one.name) || {};
    agents.set(one.name, { ...one, ...Object.fromEntries(SUMS.map((key) => [key, (had[key] || 0) + one[key]])) });
  }
  const updates = Math.max(run.updates, newer.updates), seconds = run.seconds + newer.seconds;
  return { ...newer, steps: [...run.steps, ...newer.steps], columns, updates, seconds, agents: [...agents.values()] };
}

function* pictures(run) {
  const reward = run.columns.reward;
  const at = new Map(run.evaluations.map((one) => [one.step, one]));
  if (reward || at.size) {
    const steps = [...new Set([...at.keys(), ...run.steps])].sort((a, b) => a - b);  // an evaluation also stands before the first step
    const own = reward || run.steps.map(() => null), means = smooth(own);
    const of = (values) => steps.map((step) => values[run.steps.lastIndexOf(step)] ?? null);
    const series = reward ? [
      { label: "training, mean of five steps", colour: "--c1", width: 2.5, values: of(means) },
      { label: "training, each step", colour: "--faint", values: of(own) },
    ] : [];
    for (const [kind, colour] of [["greedy", "--c2"], ["sampled", "--c3"]])
      if (at.size) series.push({ label: `held-out, ${kind}`, colour, points: true, dash: [4, 4], values: steps.map((step) => at.get(step)?.[kind] ?? null) });
    if (steps.length > 1) yield ["Reward", series, { height: 260, low: 0, high: 1, word: "reward", steps }];
  }
  for (const [title, wanted, given] of CHARTS) {
    const series = wanted.flatMap(([name, label]) => find(run.columns, name, label)).map((one, place) =>
      ({ ...one, colour: `--c${(place % 6) + 1}` }));
    if (series.some((one) => one.values.some((v) => v !== null && v !== 0))) yield [title, series, given];
  }
}

function find(columns, name, label) {
  if (!name.includes("*")) return columns[name] ? [{ label, values: columns[name] }] : [];
  const [before, after] = name.split("*");
  return Object.keys(columns)
    .filter((key) => key.startsWith(before) && key.endsWith(after) && key.length > before.length + after.length)
    .filter((key) => columns[key].some((v) => v))
    .map((key) => ({ label: key.slice(before.length, key.length - after.length), values: columns[key] }));
}

function summary(run) {
  const name = encodeURIComponent(run.name);
  const first = run.evaluations[0], last = run.evaluations.at(-1);
  const total = run.settings.steps;
  const { seconds, updates } = run;
  const left = total > updates && updates ? (seconds / updates) * (total - updates) : null;
  const tiles = [
    ["status", h(`span.status.${run.status.replace(" ", "-")}`, {}, run.status)],
    ["step", h("span", {}, num(updates), total ? h("small", {}, ` of ${num(total)}`) : "")],
    first && ["held-out reward, greedy", last === first ? num(first.greedy) : `${num(first.greedy)} → ${num(last.greedy)}`, "held-out reward"],
    ["training reward", run.training ? h("span", { title: `mean of the first ${run.training.steps} steps, and of the last` }, `${num(run.training.first)} → ${num(run.training.last)}`) : "–"],
    ["rollouts", h("span", {}, h("a", { href: `#/${name}/rollouts` }, num(Object.values(run.counts).reduce((a, b) => a + b, 0))), " ",
      h("small", {}, h("a", { href: `#/${name}/rollouts?order=worst&split=train` }, "worst")))],
    ["failed", h("a", { href: `#/${name}/rollouts?status=failed` }, num(run.counts.failed || 0))],
    ["time of the steps", lasting(seconds)],
    run.evaluations.length && ["time of the evaluations", lasting(run.evaluations.reduce((sum, one) => sum + (one.seconds || 0), 0))],
    left !== null && run.status === "running" && ["left, about", lasting(left)],
  ];
  return [
    h("h1.hidden", {}, `Run ${run.name}`),
    run.verdict && h("p.verdict", {}, run.verdict.sentence),
    run.status === "finished" && next(run),
    run.reason && h("pre.error", {}, run.reason),
    ["killed", "stopped", "failed"].includes(run.status) && h("p.quiet", {}, { killed: "Its process ended without a word. ", stopped: "It was stopped. ", failed: "" }[run.status], "To go on: ", h("code", {}, resuming(run))),
    run.status === "stopping" && h("p.quiet", {}, "Its trainer is closing what it has open."),
    run.verdict?.also.length ? h("ul.quiet", { "aria-label": "Also" }, run.verdict.also.map((one) => h("li", {}, one))) : null,
    h("dl.tiles", {}, tiles.filter(Boolean).map(([label, value, word]) => h("div", {}, h("dt", {}, term(word ?? label, label)), h("dd", {}, value)))),
    run.alerts.length ? h("ul.alerts", { "aria-label": "Alerts" }, run.alerts.map((alert) =>
      h(`li.${alert.level}`, {}, h("b", {}, alert.rule.replaceAll("_", " ")), " ",
        alert.step !== null && h("span.quiet", {}, `step ${alert.step + 1}: `), alert.message))) : null,
  ];
}

/** What to do with a run that has ended. */
function next(run) {
  const at = `#/${encodeURIComponent(run.name)}`;
  return h("p.quiet", {}, "Next: look at the ", h("a", { href: `${at}/rollouts?order=best&split=train` }, "best"), " and the ", h("a", { href: `${at}/rollouts?order=worst&split=train` }, "worst rollouts"),
    ", see ", h("a", { href: `${at}/why?step=${Math.max(0, run.updates - 1)}` }, "what a step taught"), ", or serve the model: ", h("code", {}, `agentlightning serve ${run.folder || "RUN"}`));
}

function resuming(run) {
  const path = run.folder ? ` --folder ${run.folder}` : "";
  return `agentlightning train ${run.script || "SCRIPT"} --resume${path}`;
}

function evaluations(run) {
  if (!run.evaluations.length) return null;
  const first = run.evaluations[0], last = run.evaluations.at(-1);
  const by = Object.keys(last.detail.greedy.by);
  const link = (one) => h("a", { href: `#/${encodeURIComponent(run.name)}/rollouts?split=validation&step=${one.step}` }, `after ${one.step}`);
  return section("Held-out tasks",
    table("Evaluations", [["updates", ""], [term("greedy"), "right"], [term("sampled"), "right"], ["tasks", "right"], ["failed", "right"], ...by.map((name) => [`${run.settings.group_by}: ${name}`, "right"])],
      run.evaluations.map((one) => [link(one), num(one.greedy, 3), num(one.sampled, 3), num(one.detail.greedy.tasks),
        num(one.detail.greedy.failures + one.detail.sampled.failures),
        ...by.map((name) => num(one.detail.greedy.by[name], 2))])),
    first !== last && by.length > 1 && h("p.quiet", {}, `By ${run.settings.group_by}: greedy.`));
}

function agents(run) {
  if (!run.agents.length) return null;
  const names = run.agents.map((one) => one.name);
  return section("Agents", table("Agents", [["agent", ""], ["", ""], ["reward, first → last", "right"], ["calls", "right"], ["tokens", "right"], ["calls trained on", "right"]],
    run.agents.map((one) => [h("span", {}, dot(hue(names, one.name)), h("a", { href: `#/${encodeURIComponent(run.name)}/rollouts?agent=${encodeURIComponent(one.name)}` }, one.name)),
      one.trained ? term("trained") : h("span.quiet", {}, "not trained"), ends(run.agent_rewards[one.name]), num(one.calls), num(one.completion_tokens), num(one.transitions_with_advantage)])),
    h("p.quiet", {}, "Reward: of the training rollouts in which the agent acted, or its own where the app gives it one. Mean of the first steps, and of the last."));
}

function ends(change) {
  return change ? `${num(change.first)} → ${num(change.last)}` : "–";
}

function members(run) {
  if (!run.members.length) return null;
  return section(run.members.some((one) => one.alive) ? "At work" : "Were at work", table("Members", [["role", ""], ["name", ""], ["host", ""], ["process", "right"], ["address", ""], ["last seen", "right"]],
    run.members.map((one) => [one.role, one.name, one.host ?? "–", String(one.pid ?? "–"), one.url ?? "–",
      h(one.alive ? "span" : "span.bad", {}, ago(one.seen_at))])));
}

function origin(run) {
  const git = run.git ? `${run.git.commit.slice(0, 10)} (${run.git.branch}${run.git.dirty ? ", changed" : ""})` : null;
  const lines = {
    script: run.script, command: run.command.join(" "), commit: git, folder: run.folder,
    machine: run.machine.host && `${run.machine.host}, ${run.machine.cores} cores, ${run.machine.memory_gb} GB`,
    versions: Object.entries(run.versions).map(([name, v]) => `${name} ${v}`).join(", "),
  };
  const pairs = (of) => Object.entries(of).filter(([, v]) => v !== null && v !== undefined && v !== "").map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "string" ? value : JSON.stringify(value))));
  return h("details", {}, h("summary", {}, "Where these numbers come from"), h("dl.facts", {}, pairs(lines)),
    h("h3", {}, "Settings"), h("dl.facts", {}, pairs(run.settings)));
}
