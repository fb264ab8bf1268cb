// The page: which part is shown follows from what stands behind the # of the address, and stays up to date.

import { h, fill } from "console/dom.js";
import { ask, live } from "console/net.js";
import * as runs from "console/runs.js";
import * as run from "console/run.js";
import * as rollouts from "console/rollouts.js";
import * as replay from "console/replay.js";
import * as why from "console/why.js";
import * as time from "console/time.js";
import * as compare from "console/compare.js";
import * as models from "console/models.js";
import * as sandbox from "console/sandbox.js";
import * as words from "console/terms.js";

const PAGES = { runs, run, rollouts, rollout: replay, why, time, compare, models, sandbox, words };
const TABS = [["run", "Run"], ["rollouts", "Rollouts"], ["why", "Why"], ["time", "Time"], ["compare", "Compare"], ["models", "Models"], ["sandbox", "Sandbox"], ["words", "Words"]];
const TICK = 2000;
const main = document.getElementById("main");
const bar = document.getElementById("bar");
let shown = null; // {place, tick}
let known = [];
let latest = 0; // which opening counts: a slow one that was overtaken shows nothing

/** #/RUN/PAGE/ID?query as {run, page, id, query}. */
export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, page, id] = path.split("/").map(decodeURIComponent);
  return { run: name || null, page: name ? page || "run" : "runs", id, query: new URLSearchParams(query || "") };
}

function head(place) {
  const tab = place.page === "rollout" ? "rollouts" : place.page;
  const pick = h("select", { "aria-label": "Run", onchange: (event) => { location.hash = `#/${encodeURIComponent(event.target.value)}`; } },
    known.map((one) => h("option", { value: one.name, selected: one.name === place.run }, one.name)));
  fill(bar,
    h("a.mark", { href: "#/", "aria-label": "All runs" }, h("span", { "aria-hidden": "true" }, "⚡"), h("b", {}, "agentlightning")),
    place.run && (known.length > 1 ? pick : h("b.run", {}, place.run)),
    h("nav", { "aria-label": "Pages" }, place.run && TABS.map(([page, title]) =>
      h("a", { href: `#/${encodeURIComponent(place.run)}/${page}`, "aria-current": tab === page ? "page" : null }, title))),
    h("span.live", { id: "live", role: "status" }));
}

/** Say beside the tabs whether what is shown is up to date. */
function say(text, kind) {
  const sign = document.getElementById("live");
  if (sign && sign.textContent !== text) { sign.textContent = text; sign.className = `live ${kind}`; }
}

async function open() {
  const mine = ++latest;
  const place = here();
  if (!known.length || place.page === "runs") known = await ask("runs");
  if (mine !== latest) return;
  if (place.page === "runs" && known.length === 1) { location.replace(`#/${encodeURIComponent(known[0].name)}`); return; }
  const part = PAGES[place.page];
  if (!part) throw new Error(`There is no page "${place.page}".`);
  head(place);
  document.title = [place.id, place.page, place.run, "agentlightning"].filter(Boolean).join(" · ");
  fill(main, h("p.quiet", {}, "Reading…"));
  const made = await part.show(place, known).catch((error) => { if (mine === latest) throw error; });
  if (mine !== latest) return;
  fill(main, made.element);
  if (made.shown) made.shown();
  shown = { place, tick: made.tick, status: made.status };
  state(made.status);
}

/** The run's state: what is shown follows it, but only a running one changes. */
function state(of) {
  const status = of ? of() : known.find((one) => shown && one.name === shown.place.run)?.status;
  say(live ? status || "" : "saved", live && status === "running" ? "on" : "");
}

function fail(error) {
  fill(main, h("p.error", { role: "alert" }, error.message));
}

async function tick() {
  if (live && shown && shown.tick && !document.hidden) {
    const mine = shown;
    try { await mine.tick(); if (mine === shown) state(mine.status); }
    catch (error) { say(error.message, "off"); }
  }
  setTimeout(tick, TICK);
}

window.addEventListener("hashchange", () => { shown = null; open().catch(fail); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => open().catch(fail));
open().catch(fail);
setTimeout(tick, TICK);
