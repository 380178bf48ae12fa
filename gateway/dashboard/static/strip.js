// A request's rounds as a row of blocks: accepted drafts, rejected drafts, drafts behind the answer's
// end, the target's own token.

import { el } from "./dom.js";
import { milliseconds, plural } from "./format.js";
import { tokenClass } from "./palette.js";

/** Without texts a block shows what became of its token. */
const SIGNS = { accepted: "✓", rejected: "×", cut: "·", emitted: "+" };

/** Whether the answer ended among the round's drafts: those behind its end were not wrong. */
const ended = (round) => round.verified > round.accepted && round.emitted === round.accepted;

/** Blocks of one round of a request record: {kind, text or null}. */
export function blocks(round) {
  const accepted = Math.min(round.accepted, round.emitted);
  const missed = ended(round) ? "cut" : "rejected";
  const draft = (i) => round.draft_texts?.[i] ?? null;
  const emitted = (i) => round.emitted_texts?.[i] ?? null;
  const list = [];
  for (let i = 0; i < accepted; i += 1) list.push({ kind: "accepted", text: emitted(i) ?? draft(i) });
  for (let i = accepted; i < round.verified; i += 1) list.push({ kind: missed, text: draft(i) });
  for (let i = accepted; i < round.emitted; i += 1) list.push({ kind: "emitted", text: emitted(i) });
  return list;
}

/** The round in a sentence. */
export function sentence(round, number) {
  const times = [round.draft_wait_ms ? `draft wait ${milliseconds(round.draft_wait_ms)}` : null,
    `verify ${milliseconds(round.verify_ms)}`, round.lookahead_hit ? "look-ahead hit" : null].filter(Boolean).join(", ");
  const what = round.verified
    ? `${round.proposer || "a proposer"} drafted ${plural(round.verified, "token")}, ${round.accepted} accepted${ended(round) ? ", the rest behind the answer’s end" : ""}`
    : `no drafts${round.off_reason ? `: ${round.off_reason}` : ""}`;
  return `Round ${number} at token ${round.base}: ${what}; ${plural(round.emitted, "token")} emitted. ${times}.`;
}

/** An ordered list of rounds, each with its sentence for those who do not see colours. */
export function strip(rounds) {
  return el("ol", { class: "strip", "aria-label": "Rounds" }, rounds.map((round, i) => {
    const told = sentence(round, i + 1);
    return el("li", { title: told },
      el("span", { class: "unseen" }, told),
      blocks(round).map((block) => el("span", {
        class: `block ${block.kind} ${block.kind === "accepted" ? tokenClass(round.proposer ?? "") : ""}`,
        "aria-hidden": "true",
      }, block.text === null ? SIGNS[block.kind] : visible(block.text))));
  }));
}

/** What the blocks of these rounds mean; nothing that is not among them. */
export function legend(rounds) {
  const shown = rounds.flatMap((round) => blocks(round).map(({ kind }) => kind));
  const proposers = new Set(rounds.filter((round) => round.accepted).map((round) => round.proposer || "a proposer"));
  const entry = (look, sign, label) => el("li", {}, el("span", { class: `block ${look}`, "aria-hidden": "true" }, sign), label);
  const others = [["rejected", "rejected drafts"], ["cut", "drafts behind the answer’s end"], ["emitted", "the target’s own"]];
  return el("ul", { class: "legend", "aria-label": "What the blocks mean" },
    [...proposers].map((name) => entry(`accepted ${tokenClass(name)}`, SIGNS.accepted, `accepted drafts by ${name}`)),
    others.filter(([kind]) => shown.includes(kind)).map(([kind, label]) => entry(kind, SIGNS[kind], label)));
}

/** White space that can be seen. */
export function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}
