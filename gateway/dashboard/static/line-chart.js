// Figures over time: one line for each series, gaps where nothing was measured.

import { put, svg } from "./dom.js";
import { Chart, grid, HEIGHT, MARGIN, roundUp } from "./chart.js";
import { clock } from "./format.js";

const ROWS = 12;

export class LineChart extends Chart {
  /** `format` shows a value; values are drawn from `floor` up to at least `ceiling`. */
  constructor(title, unit, { format, floor = 0, ceiling = 0 }) {
    super(title, unit);
    this.options = { format, floor, ceiling };
    this.cursor = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
  }

  /** Series are {label, mark, points: [[t, value or null]], now}; `now` is what the key shows. */
  update(series, since, until) {
    this.redraw = () => this.draw(series, since, until);
    this.redraw();
  }

  point(x) {
    this.cursor = x;
    this.redraw();
  }

  draw(series, since, until) {
    const { format, floor, ceiling } = this.options;
    const width = this.width;
    const highest = Math.max(ceiling, ...series.flatMap((s) => s.points.map(([, v]) => v ?? 0)));
    const top = highest > ceiling || !ceiling ? floor + roundUp(highest - floor) : ceiling;
    const x = (t) => MARGIN.left + ((t - since) / (until - since)) * (width - MARGIN.left - MARGIN.right);
    const y = (v) => HEIGHT - MARGIN.bottom - ((v - floor) / (top - floor)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const at = this.nearest(series, x);
    put(this.svg,
      ...grid([floor, (floor + top) / 2, top], y, width, format),
      ...this.timeLabels(since, until, x, width),
      at !== null && svg("line", { class: "cursor", x1: x(at), x2: x(at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      ...series.flatMap((s) => this.line(s, x, y)),
    );
    const shown = (s) => format(at === null ? s.now : valueAt(s, at));
    this.list(series.map((s) => ({ label: s.label, mark: s.mark, value: shown(s) })));
    this.describe(series.length ? series.map((s) => `${s.label} ${format(s.now)}`).join(", ") : "no data yet");
    this.tabulate([{ title: "time" }, ...series.map((s) => ({ title: s.label, number: true }))], this.rows(series));
  }

  line({ points, mark }, x, y) {
    const parts = [];
    let path = "";
    points.forEach(([t, value], i) => {
      if (value === null) return;
      const joined = i > 0 && points[i - 1][1] !== null;
      const alone = !joined && (i + 1 >= points.length || points[i + 1][1] === null);
      if (alone) parts.push(svg("circle", { class: `dot ${mark}`, cx: x(t), cy: y(value), r: 1.6 }));
      path += `${joined ? "L" : "M"}${x(t).toFixed(1)} ${y(value).toFixed(1)}`;
    });
    parts.push(svg("path", { class: `line ${mark}`, d: path || null }));
    return parts;
  }

  timeLabels(since, until, x, width) {
    if (this.cursor !== null) return [];
    const minutes = (until - since) / 60;
    const label = (share, anchor) => svg("text",
      { x: anchor === "end" ? width - MARGIN.right : x(since + share * (until - since)), y: HEIGHT - 3, "text-anchor": anchor },
      share === 1 ? "now" : `−${minutes * (1 - share)} min`);
    return [label(0, "start"), label(0.5, "middle"), label(1, "end")];
  }

  nearest(series, x) {
    if (this.cursor === null) return null;
    const times = series.flatMap((s) => s.points.map(([t]) => t));
    if (!times.length) return null;
    return times.reduce((best, t) => (Math.abs(x(t) - this.cursor) < Math.abs(x(best) - this.cursor) ? t : best));
  }

  rows(series) {
    const times = [...new Set(series.flatMap((s) => s.points.map(([t]) => t)))].sort((a, b) => b - a).slice(0, ROWS);
    return times.map((t) => [clock(t), ...series.map((s) => this.options.format(valueAt(s, t)))]);
  }
}

function valueAt(series, t) {
  return series.points.find(([time]) => time === t)?.[1] ?? null;
}
