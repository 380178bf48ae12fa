// The live panels: which figures there are, and how each comes from the samples' sums.

import { BarChart } from "./bar-chart.js";
import { LineChart } from "./line-chart.js";
import { byId, el, put } from "./dom.js";
import { count, fixed, milliseconds, percent, plural, short } from "./format.js";
import { lineClass, place } from "./palette.js";
import { meanLength, moments, rate, windowOf } from "./sums.js";

const NOW_SECONDS = 6;

export class Panels {
  constructor() {
    this.tokens = new LineChart("Output tokens", "per second", { format: short });
    this.length = new LineChart("Mean acceptance length", "tokens a step", { format: (v) => fixed(v), floor: 1, ceiling: 2 });
    this.rate = new LineChart("Draft acceptance rate", "", { format: (v) => percent(v), ceiling: 1 });
    this.times = new LineChart("Draft wait and step times", "mean, ms", { format: short });
    this.positions = new BarChart("Accepted by position", "of drafts there", { format: (v) => percent(v), ceiling: 1 });
    this.histogram = new BarChart("Steps by accepted drafts", "", { format: (v) => percent(v), ceiling: 1 });
    this.lookahead = new LineChart("Look-ahead", "a second", { format: short });
    this.load = new LineChart("Requests at the verifiers", "", { format: (v) => short(v), ceiling: 2 });
    this.all = [this.tokens, this.length, this.rate, this.times, this.positions, this.histogram, this.lookahead, this.load];
    put(byId("charts"), this.all.map((chart) => chart.figure));
  }

  showNumbers(on) {
    for (const chart of this.all) {
      chart.showNumbers = on;
      chart.redraw();
    }
  }

  /** `verifier` is an address, or empty for all; `seconds` is the window's length. */
  update(live, verifier, seconds) {
    const now = live.snapshot.time;
    const since = now - seconds;
    const width = Math.max(2, seconds / 60);
    const steps = moments(live.samples, verifier, since, width);
    const whole = windowOf(live.samples, verifier, since);
    const latest = windowOf(live.samples, verifier, now - NOW_SECONDS);
    const over = (label, mark, figure, present) => ({
      label, mark, now: present, points: steps.map((moment) => [moment.t, figure(moment)]),
    });
    const draw = (chart, ...series) => chart.update(series, since, now);

    draw(this.tokens, over("emitted", "own", (m) => m.perSecond("generation_tokens"), latest.perSecond("generation_tokens")),
      over("of these accepted drafts", "p0 d1", (m) => m.perSecond("accepted"), latest.perSecond("accepted")));
    const names = [...whole.all.proposers.keys()].sort((a, b) => place(a) - place(b));
    const byProposer = (figure) => names.map((name) => over(name, lineClass(name),
      (m) => figure(...(m.all.proposers.get(name) ?? [0, 0, 0])), figure(...whole.all.proposers.get(name))));
    draw(this.length, ...byProposer((s, _, accepted) => meanLength(s, accepted)));
    draw(this.rate, ...byProposer((_, drafted, accepted) => rate(drafted, accepted)));
    const timed = (label, mark, kind) => over(label, mark, (m) => m.all.mean(kind), whole.all.mean(kind));
    draw(this.times, timed("draft wait", "p1 d1", "draft_wait"), timed("verify", "p0", "verify"), timed("plain step", "own d2", "plain"));
    const looked = (i) => (m) => m.together((sums) => sums.lookahead[i] / sums.dt);
    draw(this.lookahead, over("hits", "p3", looked(0), looked(0)(whole)), over("misses", "p4 d1", looked(1), looked(1)(whole)));
    const load = (name) => (m) => m.together((sums) => sums[name] / sums.samples);
    draw(this.load, over("running", "p0", load("running"), load("running")(latest)),
      over("waiting", "p1 d1", load("waiting"), load("waiting")(latest)));
    this.bars(whole.all);
    figures(live, verifier, whole, latest);
    reasons(whole.all.off);
  }

  bars(sums) {
    const proposed = sums.proposed_per_position;
    const accepted = (i) => sums.accepted_per_position[i] ?? 0;
    this.positions.update(proposed.map((drafts, i) => ({
      label: `${i + 1}`, value: rate(drafts, accepted(i)),
      note: `${count(accepted(i))} of ${count(drafts)} drafts`,
    })), [{ label: "all positions", value: percent(sums.rate) }],
    [{ title: "position" }, { title: "accepted", number: true }, { title: "drafts" }]);
    this.histogram.update(sums.histogram.map((steps, accepted) => ({
      label: `${accepted}`, value: rate(sums.steps, steps), note: plural(steps, "step"),
    })), [{ label: "steps with drafts", value: count(sums.steps) }],
    [{ title: "accepted" }, { title: "share of steps", number: true }, { title: "steps" }]);
  }
}

function figures(live, verifier, whole, latest) {
  const shown = live.snapshot.verifiers.filter((v) => !verifier || v.address === verifier);
  const total = (name) => shown.reduce((sum, v) => sum + (v.info?.[name] ?? 0), 0);
  const entries = [
    ["tokens a second now", short(latest.perSecond("generation_tokens"))],
    ["mean acceptance length", fixed(whole.all.length)],
    ["draft acceptance rate", percent(whole.all.rate)],
    ["running", count(total("running"))],
    ["waiting", count(total("waiting"))],
    ["verifiers serving", `${shown.filter((v) => v.serves).length} of ${shown.length}`],
    ["mean draft wait", milliseconds(whole.all.mean("draft_wait"))],
  ];
  put(byId("figures"), entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function reasons(off) {
  const entries = [...off].sort((a, b) => b[1] - a[1]);
  const total = entries.reduce((sum, [, rounds]) => sum + rounds, 0);
  put(byId("off"), entries.length
    ? el("ul", { class: "reasons" }, entries.map(([reason, rounds]) => el("li", {},
      el("span", {}, reason), el("span", { class: "number" }, plural(rounds, "round")),
      el("meter", { min: 0, max: total, value: rounds, "aria-label": `share of ${reason}` }))))
    : el("p", { class: "empty" }, "Every round in this window had drafts, or there were none at all."));
}
