// The rollouts of a run, a page at a time; the filter stands in the address.

import { dot, fill, h, hue, lasting, num, reward, short, signed } from "console/dom.js";
import { ask, live } from "console/net.js";
import { term } from "console/terms.js";

const FILTERS = ["split", "status", "agent", "step", "low", "high", "task", "text", "order"];

export async function show(place) {
  const asked = Object.fromEntries(FILTERS.map((name) => [name, place.query.get(name)]));
  const first = live ? await ask("rollouts", { run: place.run, ...asked }) : kept(await ask("rollouts", { run: place.run }), asked);
  const names = [...new Set([...first.agents, ...first.rows.flatMap((one) => one.agents)])];
  const body = h("tbody", {}), note = h("p.quiet", { role: "status" }), more = h("button", { type: "button" }, "Show more");
  const total = live ? null : Object.values((await ask("run", { run: place.run })).counts).reduce((a, b) => a + b, 0);
  let next = null, count = 0;

  function put(page) {
    for (const one of page.rows) body.append(row(place.run, one, names));
    count += page.rows.length;
    next = page.next;
    more.hidden = !next;
    const rest = live ? next && "; there may be more" : ` of ${num(total)}; the others are not in this file`;
    note.textContent = count || next ? `${num(count)} shown${rest || ""}` : "No rollout fits this filter.";
  }

  more.addEventListener("click", async () => {
    more.disabled = true;
    try { put(await ask("rollouts", { run: place.run, ...asked, after: next })); }
    catch (error) { note.textContent = error.message; }
    more.disabled = false;
  });
  put(first);
  const headings = [["reward", "right"], ["task", ""], ["agents", ""], ["calls", "right"], ["tokens", "right"], ["surprise", "right"], ["step", "right"], ["split", ""], ["status", ""], ["seconds", "right"], ["rollout", ""]];
  return { element: h("div", {}, h("h1.hidden", {}, "Rollouts"), live && filters(place, asked, names),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Rollouts" },
      h("table.rollouts", {}, h("caption.hidden", {}, "Rollouts"),
        h("thead", {}, h("tr", {}, headings.map(([name, side]) => h("th", { class: side || null, scope: "col" }, term(name))))), body)),
    note, more) };
}

/** In a saved page: of the rollouts that are in it, those that fit. */
function kept(page, asked) {
  const fits = (one) => (!asked.split || one.split === asked.split) && (!asked.status || one.status === asked.status) && (!asked.task || one.task === asked.task)
    && (!asked.step || String(one.step) === asked.step) && (!asked.agent || one.agents.includes(asked.agent));
  return { ...page, rows: page.rows.filter(fits) };
}

function row(run, one, names) {
  const at = `#/${encodeURIComponent(run)}/rollout/${encodeURIComponent(one.id)}`;
  return h("tr", {},
    h("td.right", {}, reward(one.reward), one.intermediate ? h("small.quiet", {}, ` ${signed(one.intermediate, 2)}`) : null),
    h("td.wide", {}, h("a", { href: at }, short(one.shown, 90)), one.error && h("div.bad.small", {}, short(one.error, 120))),
    h("td", { title: one.agents.join(", ") }, one.agents.map((name) => dot(hue(names, name))), h("span.hidden", {}, one.agents.join(", "))),
    h("td.right", {}, num(one.calls)), h("td.right", {}, num(one.tokens)), h("td.right", {}, num(one.surprise)),
    h("td.right", {}, one.split === "train" ? num(one.step + 1) : `after ${one.step}`),
    h("td", {}, one.split === "train" ? "train" : one.greedy ? "greedy" : "sampled"),
    h("td", {}, h(`span.status.${one.status}`, {}, one.status)), h("td.right", {}, lasting(one.seconds)),
    h("td.mono.quiet", {}, one.id));
}

function filters(place, asked, names) {
  const choice = (name, label, options) => h("label", {}, label, h("select", { name },
    options.map(([value, said]) => h("option", { value, selected: (asked[name] || "") === value }, said))));
  const field = (name, label, type, given = {}) => h("label", {}, label, h("input", { name, type, value: asked[name] || "", ...given }));
  const go = ({ step, ...rest }) => {
    const split = rest.split || (step ? "train" : "");  // the first update is step 1; an evaluation is after so many
    const given = step ? { ...rest, split, step: split === "train" ? step - 1 : step } : rest;
    const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value !== null));
    location.hash = `#/${encodeURIComponent(place.run)}/rollouts${query.size ? `?${query}` : ""}`;
  };
  const form = h("form.filters", { "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); go(Object.fromEntries(new FormData(form))); } },
    choice("split", "split", [["", "all"], ["train", "train"], ["validation", "held out"]]),
    field("step", "step", "number", { min: 0, style: { width: "5em" }, value: asked.step === null ? "" : asked.split === "validation" ? asked.step : Number(asked.step) + 1 }),
    choice("status", "status", [["", "all"], ...["succeeded", "failed", "running", "queued", "cancelled"].map((s) => [s, s])]),
    choice("agent", "agent", [["", "all"], ...names.map((name) => [name, name])]),
    field("low", "reward from", "number", { step: "any", style: { width: "5em" } }), field("high", "to", "number", { step: "any", style: { width: "5em" } }),
    choice("order", "sort by", [["", "newest"], ["oldest", "oldest"], ["best", "best"], ["worst", "worst"], ["surprising", "most surprising"]]),
    field("task", "task id", "text", { style: { width: "8em" } }), field("text", "words in prompts and replies", "search"),
    h("button", {}, "Filter"),
    h("button.plain", { type: "button", onclick: () => go({}) }, "Clear"));
  form.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") form.requestSubmit(); });
  return form;
}
