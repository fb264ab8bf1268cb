// One rollout step by step: who was called, with what, what came back, and what it earned.

import { dot, fill, h, hue, lasting, link, num, percent, reward, short, signed } from "console/dom.js";
import { panel } from "console/forks.js";
import { ask, known } from "console/net.js";
import { term } from "console/terms.js";

export async function show(place) {
  const rollout = await ask("rollout", { run: place.run, id: place.id });
  for (const node of rollout.nodes) {
    if (node.kind !== "call") continue;
    node.reasons = rollout.reasons.calls[node.id] || [];
    if (rollout.fork?.call_id === node.id) node.edited = rollout.fork.edited;
    node.credit = node.reasons.find((one) => one.advantage !== null)?.advantage ?? null;
  }
  const names = [...new Set([...rollout.run_agents, ...rollout.nodes.map((node) => node.agent).filter(Boolean)])];
  const depth = depths(rollout.nodes);
  const times = rollout.nodes.filter((node) => node.started_at);
  const begin = Math.min(...times.map((node) => node.started_at)), end = Math.max(...times.map((node) => node.ended_at));
  const detail = h("article.detail", { "aria-live": "polite" });
  const steps = rollout.nodes.map((node, index) => step(node, index, depth[index], names, begin, end));
  const tree = h("ol.tree", { "aria-label": "Steps" }, steps.map((one) => h("li", {}, one)));
  let at = -1, forks = null;

  function choose(index, focus) {
    at = Math.max(0, Math.min(steps.length - 1, index));
    steps.forEach((one, place) => (place === at ? one.setAttribute("aria-current", "step") : one.removeAttribute("aria-current")));
    if (!steps.length) return;
    steps[at].scrollIntoView({ block: "nearest" });
    if (focus) steps[at].focus({ preventScroll: true });
    const node = rollout.nodes[at];
    forks = node.kind === "call" ? panel(place, node, names) : null;
    fill(detail, inside(rollout, node, names, place, forks?.element));
    history.replaceState(null, "", `#/${encodeURIComponent(place.run)}/rollout/${encodeURIComponent(place.id)}?at=${at}`);
  }

  steps.forEach((one, index) => one.addEventListener("click", () => choose(index)));
  tree.addEventListener("keydown", (event) => {
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to, true);
  });
  const first = rollout.nodes.findIndex((node) => node.kind === "call");
  const wanted = Number(place.query.get("at") ?? (first < 0 ? 0 : first));
  return {
    element: h("div.replay", {}, heading(rollout, place), h("div.split", {}, tree, detail)),
    shown: () => choose(wanted),
    tick: () => forks?.tick(),
  };
}

function depths(nodes) {
  const found = [];
  nodes.forEach((node, index) => { found[index] = node.under === null ? 0 : found[node.under] + 1; });
  return found;
}

function heading(rollout, place) {
  const run = encodeURIComponent(place.run);
  const peers = rollout.peers.length > 1 && h("nav.peers", { "aria-label": "Rollouts of the same group" },
    h("span.quiet", {}, `same task, group of ${rollout.peers.length}`),
    rollout.peers.map((one) => link(known("rollout", { run: place.run, id: one.id }), { href: `#/${run}/rollout/${encodeURIComponent(one.id)}`, title: one.id, "aria-current": one.id === rollout.id ? "page" : null },
      one.status === "failed" ? "failed" : reward(one.reward))));
  const facts = [
    rollout.split === "train" ? `step ${rollout.step + 1}` : `after ${num(rollout.step)} update${rollout.step === 1 ? "" : "s"}`,
    rollout.split === "train" ? "train" : rollout.greedy ? "held out, greedy" : "held out, sampled",
    rollout.status, `attempt ${rollout.attempts}`, `${num(rollout.calls)} call${rollout.calls === 1 ? "" : "s"}`, `${num(rollout.tokens)} tokens`,
    rollout.version !== null && `version ${rollout.version}`, lasting(rollout.seconds),
  ];
  return h("header.top", {},
    h("div", {}, h("h1", {}, short(rollout.shown, 300)),
      h("p.quiet", {}, facts.filter(Boolean).join(" · "), " · ", h("span.mono", {}, rollout.id), " · ",
        h("a", { href: `#/${run}/rollouts?task=${encodeURIComponent(rollout.task)}` }, "this task over the run"))),
    h("div.score", {}, reward(rollout.reward), h("small.quiet", {}, rollout.intermediate ? `${signed(rollout.intermediate, 2)} intermediate` : "final reward")),
    rollout.error && h("pre.error", {}, rollout.error),
    rollout.fork && h("p", {}, `${{ reply: "A person wrote the reply at one call", prompt: "A person wrote the prompt of one call" }[rollout.fork.edited] || "One call was sampled again"}. The calls before it are those of `,
      h("a", { href: `#/${encodeURIComponent(rollout.fork.run)}/rollout/${encodeURIComponent(rollout.fork.rollout_id)}` }, h("span.mono", {}, rollout.fork.rollout_id)), "."),
    peers,
    h("details", {}, h("summary", {}, "Task"), h("pre", {}, JSON.stringify(rollout.input, null, 2))));
}

function step(node, index, depth, names, begin, end) {
  const span = end - begin || 1;
  const bar = node.started_at ? h("span.time", { "aria-hidden": "true" }, h("i", { style: {
    left: `${((node.started_at - begin) / span) * 100}%`, width: `${Math.max(0.5, ((node.ended_at - node.started_at) / span) * 100)}%`,
    background: node.agent ? hue(names, node.agent) : "var(--quiet)" } })) : h("span.time", {});
  return h("button.step", { type: "button", style: { "padding-left": `${0.6 + depth * 1.1}rem` } },
    line(node, names), bar);
}

function line(node, names) {
  if (node.kind === "call") {
    const mark = node.edited ? `edited ${node.edited}` : node.endpoint ? "hosted" : node.trained ? null : "not trained";
    return [h("span.who", {}, dot(hue(names, node.agent)), h("b", {}, node.agent), mark && h("i.tag", {}, mark), node.status !== "completed" && h("i.tag.bad", {}, node.status)),
      h("span.what", {}, short(node.replies.map(words).join(" │ ") || node.error || "", 80)),
      h("span.fig", {}, node.credit !== null ? credit(node.credit) : "", h("span.quiet", {}, ` ${num(node.written)} tok`))];
  }
  if (node.kind === "tool")
    return [h("span.who", {}, h("span.icon", {}, "⚙"), h("b", {}, node.name), node.error && h("i.tag.bad", {}, node.error_type || "failed")),
      h("span.what", {}, short(node.error || node.result || "", 80)), h("span.fig.quiet", {}, lasting(node.ended_at - node.started_at))];
  if (node.kind === "reward")
    return [h("span.who", {}, h("span.icon", {}, "★"), h("b", {}, node.final ? `final reward${node.agent ? ` of ${node.agent}` : ""}` : node.source.replace("air:", ""))),
      h("span.what", {}, short(node.reason || "", 80)), h("span.fig", {}, reward(node.value))];
  return [h("span.who", {}, h("span.icon", {}, "◦"), h("b", {}, node.name), node.error !== null && h("i.tag.bad", {}, "failed")),
    h("span.what", {}, short(String(node.attributes["db.statement"] ?? node.attributes["gen_ai.tool.name"] ?? ""), 80)),
    h("span.fig.quiet", {}, lasting(node.ended_at - node.started_at))];
}

export function credit(of) {
  return h(`span.adv.${of > 0 ? "good" : of < 0 ? "bad" : "zero"}`, { title: "advantage" }, signed(of, 2));
}

function words(message) {
  return message.parts.map((part) => part.type === "text" ? part.content : part.type === "tool_call" ? `${part.name}(${text(part.arguments)})` : `[${part.type}]`).join(" ");
}

export function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

// what is inside of a step -------------------------------------------------------------------------
function inside(rollout, node, names, place, forks) {
  if (node.kind === "call") return call(rollout, node, names, place, forks);
  const facts = Object.entries(node).filter(([key, value]) => !["kind", "under", "attributes", "events"].includes(key) && value !== null && value !== "");
  const title = { tool: `Tool ${node.name}`, reward: node.final ? "Final reward" : "Intermediate reward", span: `Span ${node.name}` }[node.kind];
  const shown = { tool: [["arguments", node.arguments], ["result", node.result], ["error", node.error]], span: [["attributes", JSON.stringify(node.attributes, null, 2)], ["error", node.error]], reward: [["reason", node.reason]] }[node.kind];
  return [h("h2", {}, title), node.kind === "reward" && h("p.big", {}, reward(node.value)),
    shown.filter(([, value]) => value !== null && value !== "").map(([name, value]) => h("div.message", {}, h("h3", {}, name), h("pre", {}, pretty(value)))),
    h("dl.facts", {}, facts.filter(([key]) => !shown.some(([name]) => name === key)).map(([key, value]) =>
      h("div", {}, h("dt", {}, key.replaceAll("_", " ")), h("dd", {}, typeof value === "number" && key.endsWith("_at") ? new Date(value * 1000).toLocaleTimeString() : text(value)))))];
}

function pretty(value) {
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch { return value; }
}

function call(rollout, node, names, place, forks) {
  const facts = [
    node.edited ? `a person wrote the ${node.edited}` : node.trained ? "trained" : node.endpoint ? `only seen, answered by ${node.endpoint}` : "not trained",
    node.answerer, node.policy && `policy ${node.policy}`, node.policy_version !== null && `version ${node.policy_version}`, `T ${num(node.temperature, 1)}`,
    `${num(node.read)} → ${num(node.written)} tokens`, lasting(node.ended_at - node.started_at),
    node.replies.map((one) => one.finish_reason).filter(Boolean).join(", "),
  ];
  return [
    h("h2", {}, dot(hue(names, node.agent)), node.agent),
    h("p.quiet", {}, facts.filter(Boolean).join(" · "), " · ", h("span.mono", {}, node.id)),
    node.error && h("pre.error", {}, node.error),
    h("div.reply", {}, node.replies.map((one, index) => [node.replies.length > 1 && h("h3", {}, `choice ${index}`), message(one), surprise(one)])),
    reasons(rollout, node, place),
    forks,
    h("h3.divide", {}, node.prompt.length > 1 ? "Prompt, last message first" : "Prompt"),
    node.prompt.slice().reverse().map((one, index) => fold(one, index > 2)),
    node.tools.length ? h("details", {}, h("summary", {}, `${node.tools.length} tools offered`), h("pre", {}, JSON.stringify(node.tools, null, 2))) : null,
  ];
}

function fold(one, closed) {
  const whole = message(one);
  return closed ? h("details", {}, h("summary", {}, `${one.role}: ${short(words(one), 80)}`), whole) : whole;
}

function message(one) {
  return h(`div.message.${one.role.replace(/\W/g, "")}`, {}, h("h3", {}, one.role), one.parts.map((part) => {
    if (part.type === "tool_call") return h("pre.tool", {}, h("b", {}, part.name), " ", pretty(text(part.arguments)));
    if (part.type === "tool_call_response") return h("pre", {}, pretty(text(part.response)));
    return h("pre", {}, part.type === "text" ? part.content : `[${part.type}]`);
  }));
}

/** Why the call has its advantage: each term, and what its return was compared with. */
function reasons(rollout, node, place) {
  return [rollout.reasons.problem && h("p.quiet", {}, rollout.reasons.problem), node.reasons.map((one) => h("section.why", { "aria-label": "Why this advantage" },
    h("p.sum", {}, term("advantage"), " ", one.advantage === null ? h("b", {}, "none") : credit(one.advantage),
      node.reasons.length > 1 && h("span.quiet", {}, ` of choice ${one.choice}`),
      one.advantage !== null && h("span.quiet", {}, ` · ${percent(one.share)} `, term("share of the loss", "of the step's loss"))),
    h("p", {}, one.sentence),
    one.terms?.length > 0 && h("details", {}, h("summary", {}, "The arithmetic"), (one.terms || []).map((term) => [
      h("p.equation", {}, `${term.weight === 1 ? "" : `${num(term.weight)} × `}${term.compared ? `( counts as ${num(term.value)} − baseline ${num(term.baseline)} )` : `counts as ${num(term.value)}`} ÷ spread ${num(term.unit)}  =  `, credit(term.amount)),
      term.parts.length > 0 && h("p.small", {}, `${num(term.value)} = `, term.parts.map((part, index) => [part.factor < 0 ? " − " : index ? " + " : "", Math.abs(part.factor) === 1 ? "" : `${num(Math.abs(part.factor))} × `, `${num(part.value)} `, h("span.quiet", {}, part.name)])),
      term.compared && strip(term.means, term.own, `the ${term.means.length} compared, this one filled`),
    ]),
    one.unit !== 1 && h("p.equation", {}, `( sum of the terms − mean of the batch ${num(one.mean)} ) ÷ ${num(one.unit)}  =  `, credit(one.total))),
    known("step", { run: place.run, step: String(rollout.step) }) && h("p.small", {}, h("a", { href: `#/${encodeURIComponent(place.run)}/why?step=${rollout.step}` }, "all groups of this step, and what if"))))];
}

/** Numbers as dots on a line, one's own filled. */
export function strip(values, own, label) {
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const width = 260, at = (value) => 8 + ((value - low) / span) * (width - 16);
  const mean = values.reduce((sum, v) => sum + v, 0) / values.length;
  return h("div.strip", {}, h("svg", { viewBox: `0 0 ${width} 22`, width, height: 22, role: "img", "aria-label": `${label}: ${values.map((v) => num(v)).join(", ")}` },
    h("line", { x1: 8, x2: width - 8, y1: 11, y2: 11, class: "axis" }), h("line", { x1: at(mean), x2: at(mean), y1: 3, y2: 19, class: "mean" }),
    values.map((value, index) => index === own ? null : h("circle", { cx: at(value), cy: 11, r: 4 })),
    own === null || own === undefined ? null : h("circle.own", { cx: at(values[own]), cy: 11, r: 5 })),
    h("span.quiet.small", {}, label));
}

/** Each sampled token, the darker the less the policy expected it. */
function surprise(one) {
  if (!one.logprobs || !one.logprobs.length) return null;
  const pieces = one.pieces.length ? one.pieces : one.ids.map((id) => `⟨${id}⟩`);
  const total = one.logprobs.reduce((sum, value) => sum - value, 0);
  return h("div.tokens", {}, h("h3", {}, "tokens by ", term("surprise"), " ", h("span.quiet", {}, `mean ${num(total / one.logprobs.length)}, most ${num(-Math.min(...one.logprobs))} nats`)),
    h("p", {}, one.logprobs.map((value, index) => h("span.token", {
      style: { "--s": Math.min(1, -value / 4).toFixed(3) },
      title: `${pieces[index]}  p ${num(Math.exp(value))}, surprise ${num(-value)} nats, id ${one.ids[index]}` }, pieces[index]))));
}
