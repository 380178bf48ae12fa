// Figures by position or by count: one bar each, from zero.

import { put, svg } from "./dom.js";
import { Chart, grid, HEIGHT, MARGIN, roundUp } from "./chart.js";

// Pixels of a digit at the charts' size of text, and between two texts.
const DIGIT = 6.7;
const GAP = 3;

export class BarChart extends Chart {
  /** `format` shows a value on its bar, `axis` on the scale; the scale ends at `ceiling` or a round number. */
  constructor(title, unit, { format, axis = format, ceiling = 0 }) {
    super(title, unit);
    this.options = { format, axis, ceiling };
  }

  /** Bars are {label, value, note}; `keys` as in Chart.list. */
  update(bars, keys, columns) {
    this.redraw = () => this.draw(bars);
    this.redraw();
    this.list(keys);
    const { format } = this.options;
    this.describe(bars.length ? bars.map((b) => `${b.label}: ${format(b.value)}`).join(", ") : "no data yet");
    this.tabulate(columns, bars.map((b) => [b.label, format(b.value), b.note]));
  }

  draw(bars) {
    const { format, axis, ceiling } = this.options;
    const width = this.width;
    const top = ceiling || roundUp(Math.max(0, ...bars.map((b) => b.value ?? 0)));
    const slot = (width - MARGIN.left - MARGIN.right) / Math.max(bars.length, 1);
    const thick = Math.min(slot * 0.62, 34);
    const y = (v) => HEIGHT - MARGIN.bottom - (v / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const every = Math.ceil(26 / slot);
    put(this.svg,
      ...grid([0, top / 2, top], y, width, axis),
      ...bars.map((bar, i) => {
        const middle = MARGIN.left + slot * (i + 0.5);
        const height = y(0) - y(bar.value ?? 0);
        return svg("g", {},
          svg("title", {}, `${bar.label}: ${format(bar.value)}${bar.note ? `, ${bar.note}` : ""}`),
          svg("rect", { class: "bar-mark", x: middle - thick / 2, y: y(bar.value ?? 0), width: thick, height }),
          bar.value !== null && svg("text",
            { class: "value", x: middle, y: Math.max(y(bar.value) - 3, 7), "text-anchor": "middle" }, fitting(format(bar.value), slot)),
          i % every === 0 && svg("text", { x: middle, y: HEIGHT - 3, "text-anchor": "middle" }, bar.label));
      }),
      svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(0), y2: y(0) }),
    );
  }
}

/** The text, without its unit where a slot is too narrow for that; nothing where it is for all of it. */
function fitting(text, slot) {
  return [text, text.replace(/\s*%$/, "")].find((one) => one.length * DIGIT + GAP <= slot) ?? "";
}
