// What line and bar charts share: the figure, its keys in words, its numbers as a table.

import { el, put, svg, table } from "./dom.js";

export const HEIGHT = 120;
export const MARGIN = { left: 40, right: 6, top: 8, bottom: 16 };

/** A figure with a title, a list of keys and an SVG to draw on. */
export class Chart {
  constructor(title, unit = "") {
    this.title = title;
    this.keys = el("ul", { class: "keys" });
    this.svg = svg("svg", { role: "img" });
    this.numbers = el("div", { class: "scroll", hidden: true });
    this.figure = el("figure", { class: "chart" },
      el("figcaption", {}, title, unit && el("small", {}, ` ${unit}`)),
      this.keys, this.svg, this.numbers);
    this.showNumbers = false;
    this.redraw = () => undefined;
    new ResizeObserver(() => this.redraw()).observe(this.svg);
  }

  get width() { return this.svg.clientWidth || 300; }

  /** The chart in one sentence, for those who do not see it. */
  describe(sentence) { this.svg.setAttribute("aria-label", `${this.title}: ${sentence}`); }

  tabulate(columns, rows) {
    this.numbers.hidden = !this.showNumbers;
    put(this.numbers, this.showNumbers && table(null, columns, rows));
  }

  /** Keys are {label, value, mark}; `mark` is the classes of a line's or bar's look. */
  list(keys) {
    put(this.keys, keys.map((key) => el("li", {},
      key.mark && svg("svg", { "aria-hidden": "true", viewBox: "0 0 18 8" },
        svg("line", { class: `line ${key.mark}`, x1: 1, x2: 17, y1: 4, y2: 4 })),
      el("span", {}, `${key.label} `, el("b", {}, key.value)))));
  }
}

/** A round number above `value`. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((bound) => bound >= value * 0.999);
}

/** Horizontal lines with their labels, at `values`. */
export function grid(values, y, width, label) {
  return values.map((value) => svg("g", {},
    svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
    svg("text", { x: MARGIN.left - 5, y: y(value) + 3.5, "text-anchor": "end" }, label(value))));
}
