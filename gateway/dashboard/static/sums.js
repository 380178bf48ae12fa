// Sums over samples of the live feed. A figure of a window is a figure of its sums, never a mean
// of figures, so that it is what the verifiers themselves would say of that time.

const COUNTS = ["dt", "generation_tokens", "prompt_tokens", "steps", "drafted", "accepted"];
const ARRAYS = ["histogram", "accepted_per_position", "proposed_per_position"];

export class Sums {
  constructor() {
    for (const name of COUNTS) this[name] = 0;
    for (const name of ARRAYS) this[name] = [];
    this.proposers = new Map();
    this.times = {};
    this.lookahead = [0, 0];
    this.off = new Map();
    this.samples = 0;
    this.running = 0;
    this.waiting = 0;
  }

  add(sample) {
    for (const name of COUNTS) this[name] += sample[name];
    for (const name of ARRAYS) addTo(this[name], sample[name] ?? []);
    for (const [name, sums] of Object.entries(sample.proposers)) {
      if (!this.proposers.has(name)) this.proposers.set(name, [0, 0, 0]);
      addTo(this.proposers.get(name), sums);
    }
    for (const [kind, observed] of Object.entries(sample.times)) {
      this.times[kind] ??= [0, 0];
      addTo(this.times[kind], observed);
    }
    addTo(this.lookahead, sample.lookahead);
    for (const [reason, rounds] of Object.entries(sample.off)) {
      this.off.set(reason, (this.off.get(reason) ?? 0) + rounds);
    }
    this.samples += 1;
    this.running += sample.running;
    this.waiting += sample.waiting;
  }

  /** Mean acceptance length; null without steps. */
  get length() { return meanLength(this.steps, this.accepted); }

  /** Draft acceptance rate; null without drafts. */
  get rate() { return rate(this.drafted, this.accepted); }

  /** Mean milliseconds of a kind of step; null where there were none. */
  mean(kind) {
    const [steps, seconds] = this.times[kind] ?? [0, 0];
    return steps ? (seconds / steps) * 1e3 : null;
  }
}

export const meanLength = (steps, accepted) => (steps ? 1 + accepted / steps : null);
export const rate = (drafted, accepted) => (drafted ? accepted / drafted : null);

/** The sums of samples later than `since`, of one verifier or (empty) all of them. */
export function windowOf(samples, verifier, since) {
  const moment = new Moment();
  for (const sample of samples) if (sample.t > since) moment.add(sample, verifier);
  return moment;
}

/** Moments of `width` seconds from `since` on, oldest first; those without any sample are absent. */
export function moments(samples, verifier, since, width) {
  const found = new Map();
  for (const sample of samples) {
    if (sample.t <= since) continue;
    const start = Math.floor(sample.t / width) * width;
    if (!found.has(start)) found.set(start, new Moment(start + width / 2));
    found.get(start).add(sample, verifier);
  }
  return [...found.values()].filter((moment) => moment.all.samples);
}

/** Samples of all verifiers in one stretch of time around `t`. */
class Moment {
  constructor(t = 0) {
    this.t = t;
    this.all = new Sums();
    this.each = new Map();
  }

  add(sample, verifier) {
    for (const [address, part] of Object.entries(sample.verifiers)) {
      if (verifier && address !== verifier) continue;
      this.all.add(part);
      if (!this.each.has(address)) this.each.set(address, new Sums());
      this.each.get(address).add(part);
    }
  }

  /** `figure` of each verifier's sums over its own time, added up: what all do together. */
  together(figure) {
    let total = 0;
    for (const sums of this.each.values()) if (sums.dt > 0) total += figure(sums);
    return total;
  }

  perSecond(name) { return this.together((sums) => sums[name] / sums.dt); }
}

function addTo(total, part) {
  part.forEach((value, i) => { total[i] = (total[i] ?? 0) + value; });
}
