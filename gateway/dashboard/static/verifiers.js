// Each verifier: whether it serves, why it does or does not speculate, its proposers, its steps.

import { byId, el, put, table } from "./dom.js";
import { count, fixed, milliseconds, percent, plural, short } from "./format.js";

/** One line for each verifier: on, off and why, or away and why. */
export function speculationLines(verifiers) {
  return verifiers.map((v) => {
    const name = el("b", {}, v.address);
    if (!v.serves) return el("li", { class: "error" }, name, ` is away: ${v.problem}`);
    return el("li", {}, name, ` speculation ${v.info.speculation_state}${gain(v.info)}`);
  });
}

/** The section's content; drawn anew only where something changed. */
export class VerifierList {
  constructor() {
    this.drawn = "";
  }

  update(verifiers) {
    const text = JSON.stringify(verifiers);
    if (text === this.drawn) return;
    this.drawn = text;
    put(byId("verifier-list"), verifiers.length
      ? verifiers.map(article)
      : el("p", { class: "empty" }, "No verifier is known to this gateway yet."));
  }
}

function gain(info) {
  const share = info.speculation.average_gain;
  if (!info.speculation_state.startsWith("on") || !share) return "";
  return ` (${share > 0 ? "+" : "−"}${percent(Math.abs(share))} tokens a second over plain decoding, as measured)`;
}

function article(verifier) {
  const { info } = verifier;
  const head = el("h3", { class: "mono" }, verifier.address);
  if (info === null) {
    return el("article", { class: "verifier" }, head, el("p", { class: "error" }, verifier.problem ?? "not asked yet"));
  }
  const { total, free } = info.kv_blocks;
  return el("article", { class: "verifier" }, head,
    !verifier.serves && el("p", { class: "error" }, `away: ${verifier.problem}; what follows is its last answer`),
    facts({
      model: info.model, engine: `${info.engine}, ${info.device}, ${info.dtype}`, rule: info.rule,
      K: info.num_speculative_tokens, context: plural(info.max_model_len, "token"),
      "cache in use": total ? percent((total - free) / total) : null,
      preemptions: count(info.preemptions), "from this gateway": plural(verifier.in_flight, "request"),
      "plain step": info.speculation.plain_step_ms ? milliseconds(info.speculation.plain_step_ms) : null,
      speculation: info.speculation_state,
    }),
    proposers(info), costs(info));
}

function facts(entries) {
  return el("dl", { class: "facts" }, Object.entries(entries)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, `${value}`))));
}

function proposers(info) {
  if (!info.proposers.length) return el("p", { class: "empty" }, "No proposer is attached.");
  const columns = [{ title: "proposer" }, { title: "state" }, { title: "steps", number: true },
    { title: "length", number: true }, { title: "rate", number: true }, { title: "blocks", number: true },
    { title: "look-ahead", number: true }, { title: "dropped blocks" }, { title: "detail", wrap: true }];
  const rows = info.proposers.map((p) => {
    const { acceptance } = p;
    const looks = p.lookahead_hits + p.lookahead_misses;
    const dropped = Object.entries(p.dropped).map(([reason, blocks]) => `${reason} ${count(blocks)}`).join(", ");
    return [p.method && p.method !== p.name ? `${p.name} (${p.method})` : p.name, p.state ?? "in requests",
      count(acceptance.num_spec_steps),
      acceptance.num_spec_steps ? fixed(acceptance.mean_acceptance_length) : "–",
      acceptance.num_draft_tokens ? percent(acceptance.draft_acceptance_rate) : "–",
      count(p.draft_blocks), looks ? `${percent(p.lookahead_hits / looks)} of ${count(looks)}` : "–",
      dropped || "none", p.detail];
  });
  return el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": "Proposers since the verifier's start" },
    table("Proposers, since the verifier's start", columns, rows));
}

function costs(info) {
  const entries = Object.entries(info.step_cost_ms).sort((a, b) => a[0] - b[0]);
  if (!entries.length) return null;
  return el("div", {}, el("h4", {}, "Step cost by tokens verified at once"),
    facts(Object.fromEntries(entries.map(([tokens, ms]) => [plural(Number(tokens), "token"), `${short(ms)} ms`]))));
}
