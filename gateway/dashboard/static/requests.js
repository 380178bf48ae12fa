// The table of recent requests, and one request's rounds beneath its row.

import { json } from "./api.js";
import { byId, el, put, setText } from "./dom.js";
import { clock, count, fixed, milliseconds, percent, plural } from "./format.js";
import { shortened } from "./running.js";
import { legend, strip } from "./strip.js";

const COLUMNS = ["started", "request", "model", "workload", "temp.", "prompt", "tokens", "rounds",
  "length", "rate", "first token", "time", "ended"];
const NUMBERS = new Set(["temp.", "prompt", "tokens", "rounds", "length", "rate", "first token", "time"]);
const PAGE = 25;
const POLL_MS = 4000;
// An answer that never comes must not be the last one asked for.
const PATIENCE_MS = 15_000;

/** A client may use an id again, and choices share theirs: the span's is unique. */
const keyOf = (record) => record.span_id || record.request_id;

export class Requests {
  constructor() {
    this.records = [];
    this.opened = new Map();
    this.older = [];
    byId("requests-refresh").addEventListener("click", () => this.refresh());
    byId("requests-older").addEventListener("click", () => this.loadOlder());
  }

  /** Refreshes now and then while the page is looked at. */
  async run() {
    for (;;) {
      if (!document.hidden) await this.refresh();
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  async refresh() {
    try {
      this.take(await json(`v1/requests?limit=${PAGE}`, { signal: AbortSignal.timeout(PATIENCE_MS) }));
      setText(byId("requests-state"), "");
    } catch (error) {
      this.fail(error);
    }
  }

  async loadOlder() {
    const last = keyOf(this.records.at(-1));
    try {
      const page = await json(`v1/requests?limit=${PAGE}&before=${encodeURIComponent(last)}`);
      this.older.push(...page.data);
      byId("requests-older").hidden = !page.has_more;
      this.draw();
    } catch (error) {
      this.fail(error);
    }
  }

  take(page) {
    const newest = JSON.stringify(page.data);
    if (newest === this.newest) return;
    this.newest = newest;
    // What was asked for as older stays where it is, so that nothing falls between the two.
    if (this.older.length) this.older.unshift(...this.first);
    this.first = page.data;
    if (!this.older.length) byId("requests-older").hidden = !page.has_more;
    this.draw();
  }

  fail(error) {
    const state = byId("requests-state");
    setText(state, error.status === 404
      ? "This gateway keeps no record of requests (it was started without evidence)."
      : `Requests cannot be shown: ${error.message}`);
  }

  draw() {
    const seen = new Set();
    this.records = [...(this.first ?? []), ...this.older]
      .filter((r) => !seen.has(keyOf(r)) && seen.add(keyOf(r)));
    const focused = document.activeElement?.dataset?.request;
    put(byId("requests-table"), this.records.length
      ? el("table", {},
        el("thead", {}, el("tr", {}, COLUMNS.map((title) => el("th", { scope: "col", class: NUMBERS.has(title) && "number" }, title)))),
        el("tbody", {}, this.records.flatMap((record) => this.rows(record))))
      : el("p", { class: "empty" }, "No request has ended yet. Send one from the playground, or from any OpenAI client."));
    if (focused) byId("requests-table").querySelector(`[data-request="${CSS.escape(focused)}"]`)?.focus();
  }

  rows(record) {
    const id = keyOf(record);
    const open = this.opened.has(id);
    const name = el("button", {
      type: "button", class: "plain mono", "data-request": id, title: record.request_id, "aria-expanded": `${open}`,
      onclick: () => this.toggle(id),
    }, `${open ? "▾" : "▸"} ${shortened(record.request_id)}`);
    const cells = [name, record.model, record.workload || "–", fixed(record.temperature, 1),
      count(record.prompt_tokens), count(record.completion_tokens), count(record.num_rounds),
      record.num_spec_steps ? fixed(record.mean_acceptance_length) : "–",
      record.num_draft_tokens ? percent(record.draft_acceptance_rate) : "–",
      milliseconds(record.first_token_ms), milliseconds(record.duration_ms),
      record.error ? el("span", { class: "error" }, record.error) : record.finish_reason || "–"];
    const row = el("tr", { class: open && "opened" }, el("th", { scope: "row" }, clock(record.started)),
      cells.map((cell, i) => el("td", { class: NUMBERS.has(COLUMNS[i + 1]) && "number" }, cell)));
    return open ? [row, el("tr", {}, el("td", { colspan: COLUMNS.length }, this.opened.get(id)))] : [row];
  }

  async toggle(id) {
    if (this.opened.delete(id)) {
      this.draw();
      return;
    }
    const detail = el("div", { class: "detail" }, el("p", { class: "note" }, "loading…"));
    this.opened.set(id, detail);
    this.draw();
    try {
      put(detail, this.details(await json(`v1/requests/${encodeURIComponent(id)}`)));
    } catch (error) {
      put(detail, el("p", { class: "error" }, error.message));
    }
  }

  details(record) {
    const off = Object.entries(record.off ?? {}).map(([reason, rounds]) => `${reason}: ${plural(rounds, "round")}`);
    const by = (record.proposers ?? []).map((p) => `${p.name} ${count(p.num_accepted_draft_tokens)} of ${count(p.num_draft_tokens)} drafts in ${plural(p.num_spec_steps, "step")}`);
    const lines = [
      ["accepted", by.join("; ") || "no drafts were verified"],
      ["steps by accepted drafts", (record.acceptance_histogram ?? []).map((steps, i) => `${i}: ${count(steps)}`).join(", ")],
      ["waited", `${milliseconds(record.queue_ms)} in the queue, ${milliseconds(record.draft_wait_ms)} for drafts; ${milliseconds(record.verify_ms)} verifying`],
      ["without drafts", off.join("; ") || "no round"],
      ["rule, K, verifier", `${record.rule || "–"}, ${record.num_speculative_tokens ?? "–"}, ${record.verifier || "–"}`],
      ["trace", record.trace_id || "–"],
    ];
    return [
      el("dl", { class: "facts" }, lines.filter(([, v]) => v).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      record.rounds?.length
        ? [legend(record.rounds), strip(record.rounds)]
        : el("p", { class: "note" }, "Its rounds were not kept: they are where services run with --trace-level detailed (their text with --trace-content)."),
    ];
  }
}
