// Elements and numbers. What a model or an app wrote is set as text, never as HTML.

const SVG = new Set(["svg", "path", "line", "rect", "circle"]);

/** An element: h("a.link", {href: "#/", onclick: f, style: {width: "3px"}}, child, ...). */
export function h(name, given = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "style") for (const [property, v] of Object.entries(value)) made.style.setProperty(property, v);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, child);
    else if (child instanceof Node) parent.append(child);
    else if (child !== null && child !== undefined && child !== false) parent.append(String(child));
  }
}

/** Put these in place of what an element holds. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
  return parent;
}

/** As `fill`, but what is equal already stays: the focus, an opened part, how far it was scrolled. */
export function renew(parent, ...children) {
  adapt(parent, fill(document.createElement("div"), ...children));
}

function adapt(old, newer) {
  let next = old.firstChild;
  const remove = (until) => { while (next !== until) { const gone = next; next = next.nextSibling; gone.remove(); } };
  for (const one of [...newer.childNodes]) {
    let was = next;
    while (was && was.nodeName !== one.nodeName) was = was.nextSibling;
    if (!was) { old.insertBefore(one, next); continue; }
    remove(was);
    next = was.nextSibling;
    if (!was.isEqualNode(one)) change(was, one);
  }
  remove(null);
}

function change(was, one) {
  if (was.nodeType !== Node.ELEMENT_NODE) { was.replaceWith(one); return; }
  for (const { name } of [...was.attributes]) if (!one.hasAttribute(name) && name !== "open") was.removeAttribute(name);
  for (const { name, value } of one.attributes) was.setAttribute(name, value);
  adapt(was, one);
}

/** A number as short as it can be read: 0.4312, 12.5, 1,234, 3.1e-7; – for none. */
export function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return written(value, size, digits).replace("-", "−");
}

function written(value, size, digits) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? Math.max(1, digits - 2) : digits);
}

/** With its sign. */
export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : "") + num(value, digits);
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)}\u00a0%`;
}

/** Seconds as a person says them. */
export function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

export function ago(time) {
  return time ? `${lasting(Math.max(0, Date.now() / 1000 - time)).replace(/\.\d+ s$/, " s")} ago` : "–";
}

/** Text in which `words` between backticks are code. */
export function marked(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

export function short(text, length) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > length ? line.slice(0, length - 1) + "…" : line;
}

/** A table: columns are [heading, "right" or ""], rows are lists of cells. */
export function table(caption, columns, rows, given = {}) {
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
    h("table", given,
      h("caption.hidden", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([name, side]) => h("th", { class: side || null, scope: "col" }, name)))),
      h("tbody", {}, rows.map((row) => row instanceof Node ? row
        : h("tr", {}, row.map((cell, place) => h("td", { class: columns[place][1] || null }, cell)))))));
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), children);
}

/** The colour of an agent, the same on every page. */
export function hue(names, name) {
  return `var(--c${(Math.max(0, names.indexOf(name)) % 6) + 1})`;
}

export function dot(colour) {
  return h("span.dot", { style: { background: colour }, "aria-hidden": "true" });
}

/** A link, or plain text if what it leads to is not in a saved page. */
export function link(there, given, ...children) {
  return there ? h("a", given, children) : h("span.quiet", { title: "not in this file" }, children);
}

/** A reward with its colour: shared by all tables. */
export function reward(value) {
  const kind = value === null || value === undefined ? "none" : value > 0 ? "good" : value < 0 ? "bad" : "zero";
  return h(`span.reward.${kind}`, {}, num(value));
}
