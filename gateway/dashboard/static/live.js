// The live feed as it arrives: the newest snapshot and the samples of the last minutes.

import { events } from "./api.js";

const KEPT_SECONDS = 900;
const LONGEST_PAUSE_MS = 10_000;
// A connection may be dead without an end: silence is one, too.
const LONGEST_SILENCE_MS = 15_000;

/** Tells of "snapshot" and "state"; `state` is {name, text}. */
export class Live extends EventTarget {
  constructor() {
    super();
    this.samples = [];
    this.snapshot = null;
    this.state = { name: "connecting", text: "connecting…" };
    this.abort = new AbortController();
    this.wake = () => undefined;
    this.ended = null;
    this.silence = null;
  }

  /** Listens for ever; after a loss it tries again, later each time. */
  async run() {
    for (let pause = 500; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
      let problem = "the gateway ended the feed";
      try {
        this.abort = new AbortController();
        this.ended = null;
        this.heard();
        for await (const snapshot of events("v1/live", { signal: this.abort.signal })) {
          this.take(snapshot);
          pause = 500;
        }
      } catch (error) {
        problem = this.ended ?? error.message;
        if (error.status === 401 || error.status === 403) {
          this.say("refused", `not allowed: ${problem}`);
          await this.rest(LONGEST_PAUSE_MS);
          continue;
        }
      }
      clearTimeout(this.silence);
      if (!problem) continue;
      this.say("lost", `not live: ${problem}; trying again`);
      await this.rest(pause);
    }
  }

  /** Connect anew now, as with another key. */
  again() {
    this.say("connecting", "connecting…");
    this.end("");
    this.wake();
  }

  /** Leaves the connection; an empty reason is none to wait for. */
  end(reason) {
    this.ended = reason;
    this.abort.abort();
  }

  heard() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.end("nothing came for 15 seconds"), LONGEST_SILENCE_MS);
  }

  take(snapshot) {
    this.heard();
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
