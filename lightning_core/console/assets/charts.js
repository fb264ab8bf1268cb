// Curves by uPlot. A chart is made once and given new numbers, so that nothing flickers.

import uPlot from "console/uplot.js";
import { h, num } from "console/dom.js";
import { term } from "console/terms.js";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * A chart: series are {label, colour: "--c1", values: [..], points, dash, width}; steps is the axis.
 * Returns {element, set(steps, series)}. onstep is told which step was clicked.
 */
export function chart(title, steps, series, { height = 190, unit = "", onstep = null, low = null, high = null, word = "" } = {}) {
  const holder = h("div.plot");
  const note = h("span.last");
  const element = h("figure.chart", { role: "group", "aria-label": title }, h("figcaption", {}, h("b", {}, term(word, title)), note), holder);
  let plot = null, shape = "";

  /** A value of the legend. Without the mouse a series that ends earlier shows its own last one. */
  function told(made, value, index) {
    const there = (v) => v !== null && v !== undefined;
    if (there(value)) return num(value) + unit;
    const at = made.cursor.idx == null ? made.data[index].findLastIndex(there) : -1;
    return at < 0 ? "–" : `${num(made.data[index][at])}${unit} (step ${made.data[0][at]})`;
  }

  function options(width) {
    const line = colour("--line"), quiet = colour("--quiet");
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    return {
      width, height,
      cursor: { sync: { key: "steps" }, focus: { prox: 24 }, drag: { x: true, y: false }, points: { size: 6 } },
      legend: { live: true },
      scales: {
        x: { time: false },
        y: { range: (_, a, b) => {
          const least = low === null ? a : Math.min(low, a), most = high === null ? b : Math.max(high, b);
          const pad = (most - least || Math.abs(most) || 1) * 0.06;
          return [least === 0 ? 0 : least - pad, most + pad];
        } },
      },
      axes: [{ ...axis, size: 26, gap: 3, values: (_, at) => at.map((v) => (Number.isInteger(v) ? v : "")) },
        { ...axis, size: 46, gap: 3, values: (_, at) => at.map((v) => num(v, at.length > 1 && at[1] - at[0] < 0.01 ? 3 : 2)) }],
      series: [{ label: "step", value: (_, v) => v ?? "–" }, ...series.map((one) => ({
        label: one.label, stroke: colour(one.colour), width: one.width ?? 1.5, dash: one.dash,
        spanGaps: true, value: told,
        points: { show: one.points || undefined, size: one.points ? 7 : 4, fill: colour(one.colour) },
        paths: one.points && !one.dash ? () => null : undefined,
        band: one.band,
      }))],
      bands: series.some((one) => one.band) ? [{ series: [2, 1], fill: colour("--band") }] : undefined,
      hooks: { ready: [(made) => {
        made.over.addEventListener("mouseleave", () => setTimeout(rest));
        if (!onstep) return;
        made.over.addEventListener("click", () => {
          const at = made.cursor.idx;
          if (at !== null && at !== undefined && made.select.width < 3) onstep(made.data[0][at]);
        });
      }] },
    };
  }

  /** Without the mouse the legend shows the last step. */
  function rest() {
    if (plot && plot.cursor.idx == null && steps.length) plot.setLegend({ idx: steps.length - 1 });
  }

  function draw() {
    const width = Math.max(240, holder.clientWidth || 400);
    const data = [steps, ...series.map((one) => one.values)];
    const now = JSON.stringify(series.map((one) => one.label));
    if (plot && now === shape) { plot.setData(data); plot.setSize({ width, height }); }
    else { if (plot) plot.destroy(); plot = new uPlot(options(width), data, holder); shape = now; }
    setTimeout(rest);
    const last = (one) => num(one.values.filter((v) => v !== null && v !== undefined).at(-1));
    note.textContent = series.length === 1 ? last(series[0]) + unit : "";
  }

  new ResizeObserver(() => { if (plot && holder.clientWidth) plot.setSize({ width: holder.clientWidth, height }); }).observe(holder);
  return { element, set(newer, values) { steps = newer; series = values; draw(); } };
}

/** Mean of each value and up to four before it; what is missing stays missing. */
export function smooth(values, width = 5) {
  return values.map((value, end) => {
    if (value === null || value === undefined) return null;
    const window = values.slice(Math.max(0, end - width + 1), end + 1).filter((v) => v !== null && v !== undefined);
    return window.reduce((sum, v) => sum + v, 0) / window.length;
  });
}
