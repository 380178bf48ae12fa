// Elements: made, filled, found. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `attributes` with null, undefined or false values are left out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replaces what `node` holds; empty children are left out. */
export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== ""));
}

export const byId = (id) => document.getElementById(id);

/** Sets text only where it changes, so that nothing is announced or repainted twice. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A table: `columns` are {title, number, wrap}, `rows` arrays of text or nodes. */
export function table(caption, columns, rows, attributes = {}) {
  const kind = (column) => [column.number && "number", column.wrap && "wrap"].filter(Boolean).join(" ") || null;
  return el("table", attributes,
    caption && el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: kind(c) }, c.title)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {},
      ...row.map((cell, i) => i === 0
        ? el("th", { scope: "row", class: kind(columns[i]) }, cell)
        : el("td", { class: kind(columns[i]) }, cell))))));
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
