// The live feed as it arrives: the newest snapshot and the samples of the last minutes.

import { events } from "./api.js";

const KEPT_SECONDS = 900;
const LONGEST_PAUSE_MS = 10_000;

/** Tells of "snapshot" and "state"; `state` is {name, text}. */
export class Live extends EventTarget {
  constructor() {
    super();
    this.samples = [];
    this.snapshot = null;
    this.state = { name: "connecting", text: "connecting…" };
    this.abort = new AbortController();
    this.wake = () => undefined;
  }

  /** Listens for ever; after a loss it tries again, later each time. */
  async run() {
    for (let pause = 500; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
      let problem = "the gateway ended the feed";
      try {
        this.abort = new AbortController();
        for await (const snapshot of events("v1/live", { signal: this.abort.signal })) {
          this.take(snapshot);
          pause = 500;
        }
      } catch (error) {
        problem = error.message;
        if (error.status === 401 || error.status === 403) {
          this.say("refused", `not allowed: ${problem}`);
          await this.rest(LONGEST_PAUSE_MS);
          continue;
        }
      }
      this.say("lost", `not live: ${problem}; trying again`);
      await this.rest(pause);
    }
  }

  /** Connect anew now, as with another key. */
  again() {
    this.say("connecting", "connecting…");
    this.abort.abort();
    this.wake();
  }

  take(snapshot) {
    if (snapshot.history) {
      const first = snapshot.history[0]?.t ?? snapshot.time;
      this.samples = this.samples.filter((sample) => sample.t < first).concat(snapshot.history);
    } else {
      this.samples.push(snapshot.sample);
    }
    const oldest = snapshot.time - KEPT_SECONDS;
    while (this.samples.length && this.samples[0].t < oldest) this.samples.shift();
    this.snapshot = snapshot;
    if (this.state.name !== "live") this.say("live", "live");
    this.dispatchEvent(new Event("snapshot"));
  }

  say(name, text) {
    this.state = { name, text };
    this.dispatchEvent(new Event("state"));
  }

  rest(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => { clearTimeout(timer); resolve(); };
    });
  }
}
