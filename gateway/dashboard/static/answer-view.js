// The answer with its tokens coloured by origin; hover or focus a round to read about it.

import { el, put } from "./dom.js";
import { fixed, milliseconds, percent, plural } from "./format.js";
import { tokenClass } from "./palette.js";
import { visible } from "./strip.js";

export class AnswerView {
  /** `answer` holds the text, `detail` the sentences about one round, `legend` the origins. */
  constructor(answer, detail, legend) {
    Object.assign(this, { answer, detail, legend });
    this.rounds = [];
    this.texts = new Map();
    this.current = -1;
    // Not `pointerover`: that also comes where the page moves beneath a pointer that rests.
    answer.addEventListener("pointermove", (event) => this.show(indexOf(event.target)));
    answer.addEventListener("focusin", (event) => this.show(indexOf(event.target)));
    answer.addEventListener("keydown", (event) => this.move(event));
  }

  clear() {
    this.rounds = [];
    this.current = -1;
    put(this.answer);
    put(this.detail);
    put(this.legend);
  }

  /** Appends rounds of a transcript. */
  append(rounds) {
    for (const round of rounds) {
      const index = this.rounds.push(round) - 1;
      this.answer.append(el("span", {
        class: `round${round.rejected.length && !round.cut ? " miss" : ""}`,
        "data-round": index, tabindex: index === 0 ? 0 : -1,
      }, round.tokens.map((token) => this.token(token, round)), this.rejected(round)));
    }
  }

  /** Tells the text of ids that only rejected drafts have. */
  name(texts) {
    this.texts = texts;
    for (const node of this.answer.querySelectorAll(".rejected")) {
      node.textContent = this.textOf(Number(node.dataset.id));
    }
    this.show(this.current, true);
  }

  /** Marks the tokens that ended the answer and are none of its `text`, as an end-of-text token. */
  end(text) {
    const tokens = [...this.answer.querySelectorAll(".token:not(.rejected)")];
    const all = tokens.map((token) => token.textContent).join("");
    if (!all.startsWith(text)) return;
    let more = all.length - text.length;
    for (const token of tokens.reverse()) {
      more -= token.textContent.length;
      if (more < 0) return;
      token.classList.add("beyond");
      token.title += "; it ended the answer and is not part of it";
    }
  }

  showRejected(on) { this.answer.classList.toggle("with-rejected", on); }

  explain({ counts, rejected }) {
    const total = counts.reduce((sum, [, tokens]) => sum + tokens, 0);
    const drafted = counts.filter(([origin]) => origin !== null);
    const own = counts.find(([origin]) => origin === null)?.[1] ?? 0;
    const entry = (sample, label, tokens) => el("li", {}, sample, `${label}: ${plural(tokens, "token")}${total ? ` (${percent(tokens / total)})` : ""}`);
    put(this.legend,
      drafted.map(([origin, tokens]) => entry(el("span", { class: `token drafted ${tokenClass(origin)}` }, " draft "), `drafted by ${origin}`, tokens)),
      total > 0 && entry(el("span", { class: "token" }, "plain"), "the target’s own", own),
      rejected > 0 && el("li", {}, el("span", { class: "token rejected" }, "draft"), `rejected drafts: ${plural(rejected, "token")}, marked ×`));
  }

  token(token, round) {
    const origin = token.drafted ? `drafted by ${round.proposer}` : "the target’s own";
    return el("span", {
      class: token.drafted ? `token drafted ${tokenClass(round.proposer)}` : "token",
      title: `${origin}; probability ${percent(Math.exp(token.logprob), 1)}`,
    }, token.text);
  }

  rejected(round) {
    return round.rejected.map((id) => el("del", { class: "token rejected", "data-id": id }, this.textOf(id)));
  }

  textOf(id) { return this.texts.has(id) ? visible(this.texts.get(id)) : `#${id}`; }

  show(index, again = false) {
    if (index < 0 || (index === this.current && !again)) return;
    const spans = this.answer.children;
    spans[this.current]?.classList.remove("current");
    spans[index].classList.add("current");
    this.current = index;
    for (const span of spans) span.tabIndex = span === spans[index] ? 0 : -1;
    put(this.detail, this.sentences(this.rounds[index]));
  }

  sentences(round) {
    const drafted = round.tokens.filter((token) => token.drafted);
    const own = round.tokens.filter((token) => !token.drafted);
    const shown = (tokens, kind) => tokens.flatMap((token) => [el("span", { class: `token ${kind}`, title: `log-probability ${fixed(token.logprob)}` }, visible(token.text)), " "]);
    return [
      el("p", {}, el("b", {}, `Round ${round.number}`), ` at token ${round.base}. `,
        round.drafted
          ? `${round.proposer} drafted ${plural(round.drafted, "token")}, ${round.accepted} accepted${round.lookahead_hit ? ", prepared ahead" : ""}. `
          : `No drafts: ${round.off_reason ?? "none came"}. `,
        `Draft wait ${milliseconds(round.draft_wait_ms)}, verify ${milliseconds(round.verify_ms)}.`),
      el("p", {},
        drafted.length > 0 && ["Accepted ", shown(drafted, `drafted ${tokenClass(round.proposer)}`)],
        round.rejected.length > 0 && [round.cut ? "Behind the answer’s end " : "Rejected ",
          round.rejected.flatMap((id) => [el("del", { class: "token rejected" }, this.textOf(id)), " "])],
        own.length > 0 && ["The target’s own ", shown(own, "")]),
    ].map((p) => { p.normalize(); return p; });
  }

  move(event) {
    const last = this.rounds.length - 1;
    // From the round that has the focus: the pointer may show another, also where it rests while the page moves.
    const at = indexOf(event.target);
    const target = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (target === undefined || last < 0) return;
    event.preventDefault();
    this.answer.children[Math.max(0, Math.min(target, last))].focus();
  }
}

function indexOf(node) {
  const round = node.closest?.(".round");
  return round ? Number(round.dataset.round) : -1;
}
