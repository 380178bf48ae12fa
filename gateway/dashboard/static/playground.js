// The playground: one prompt, its answer by origin, and the same without speculation.

import { events, json } from "./api.js";
import { AnswerView } from "./answer-view.js";
import { byId, el, put, setText, table } from "./dom.js";
import { count, fixed, milliseconds, percent, short } from "./format.js";
import { Transcript } from "./transcript.js";

const SEEDS = 2 ** 31;

export class Playground {
  constructor() {
    this.view = new AnswerView(byId("answer"), byId("round"), byId("play-legend"));
    this.abort = null;
    this.known = "";
    this.runs = [];
    byId("play-form").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("compare").addEventListener("click", () => this.compare());
    byId("show-rejected").addEventListener("change", (event) => this.view.showRejected(event.target.checked));
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("play-form").requestSubmit();
    });
  }

  /** Offers the models and proposers that the verifiers have. */
  offer(verifiers) {
    const infos = verifiers.filter((v) => v.info).map((v) => v.info);
    const models = [...new Set(infos.map((info) => info.model))];
    const names = [...new Set(infos.flatMap((info) => info.proposers.filter((p) => p.state).map((p) => p.name)))].filter((name) => name);
    const known = JSON.stringify([models, names]);
    if (known === this.known) return;
    this.known = known;
    choose(byId("model"), models.map((model) => [model, model]));
    choose(byId("proposer"), [["", "any proposer"], ...names.map((name) => [name, name])]);
    const ceilings = infos.map((info) => info.num_speculative_tokens).filter((k) => k > 0);
    byId("k").placeholder = ceilings.length ? `${Math.min(...ceilings)}` : "as configured";
  }

  async send() {
    // The keyboard's way asks no button whether it is disabled.
    if (byId("send").disabled) return;
    const asked = this.asked();
    this.view.clear();
    this.runs = [];
    const transcript = new Transcript();
    const run = await this.timed(asked, transcript, (rounds) => {
      this.view.append(rounds);
      this.view.explain(transcript.origins());
    });
    if (!run) return;
    this.view.end(transcript.text);
    run.label = asked.speculative_decoding.enabled === false ? "without speculation" : "with speculation";
    this.last = asked;
    this.runs = [run];
    this.report();
    byId("compare").disabled = asked.speculative_decoding.enabled === false;
    await this.nameRejected(transcript, asked.model);
  }

  /** The same request without speculation, timed beside the first. */
  async compare() {
    const plain = { ...this.last, speculative_decoding: { rounds: true, enabled: false } };
    const run = await this.timed(plain, new Transcript(), () => undefined);
    if (!run) return;
    run.label = "without speculation";
    this.runs = [this.runs[0], run];
    this.report();
  }

  /** What one run took and gave; null where it failed, which the page then says. */
  async timed(asked, transcript, onRounds) {
    this.abort = new AbortController();
    this.busy(true);
    setText(byId("play-state"), "answering…");
    const begun = performance.now();
    let first = null;
    try {
      for await (const chunk of events("v1/chat/completions", { body: asked, signal: this.abort.signal })) {
        const rounds = transcript.take(chunk);
        if (rounds.length) first ??= performance.now() - begun;
        onRounds(rounds);
      }
    } catch (error) {
      const stopped = error.name === "AbortError";
      byId("play-state").classList.toggle("error", !stopped);
      setText(byId("play-state"), stopped ? "Stopped." : error.message);
      return null;
    } finally {
      this.busy(false);
    }
    byId("play-state").classList.remove("error");
    return { transcript, first, total: performance.now() - begun, seed: asked.seed };
  }

  asked() {
    const number = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
    const speculative = { rounds: true };
    if (!byId("speculate").checked) speculative.enabled = false;
    else {
      if (number("k") !== undefined) speculative.num_speculative_tokens = number("k");
      if (byId("proposer").value) speculative.proposer = byId("proposer").value;
    }
    return {
      model: byId("model").value || undefined,
      messages: [{ role: "user", content: byId("prompt").value }],
      temperature: number("temperature"),
      // Drawn here where none is given, so that a comparison can ask for the same.
      seed: number("seed") ?? Math.floor(Math.random() * SEEDS),
      max_completion_tokens: number("max-tokens"),
      logprobs: true,
      stream: true,
      stream_options: { include_usage: true },
      speculative_decoding: speculative,
    };
  }

  async nameRejected(transcript, model) {
    const ids = [...new Set(transcript.rounds.flatMap((round) => round.rejected))];
    if (!ids.length) return;
    try {
      const { token_texts: texts } = await json("detokenize", { body: { model, tokens: ids, return_token_texts: true } });
      this.view.name(new Map(ids.map((id, i) => [id, texts[i]])));
    } catch (error) {
      byId("play-state").textContent += ` Rejected drafts stay numbers: ${error.message}.`;
    }
  }

  report() {
    const [run, plain] = this.runs;
    const { transcript } = run;
    const ended = { stop: "It ended by itself.", length: "It reached the most tokens that were asked for." }[transcript.finishReason] ?? "";
    let told = `${count(tokens(run))} tokens in ${milliseconds(run.total)}, seed ${run.seed}. ${ended}`;
    if (plain) {
      const same = transcript.text === plain.transcript.text;
      told = `${fixed(plain.total / run.total)} times as fast as without speculation; ${same ? "the same text." : "the texts differ."}`;
    }
    setText(byId("play-state"), told);
    const columns = [{ title: "" }, ...["tokens", "first token", "time", "tokens/s", "rounds", "length", "rate"].map((title) => ({ title, number: true }))];
    put(byId("play-figures"), table(null, columns, this.runs.map((r) => {
      const steps = r.transcript.rounds.filter((round) => round.drafted);
      const sum = (name) => steps.reduce((total, round) => total + round[name], 0);
      return [r.label, count(tokens(r)), milliseconds(r.first), milliseconds(r.total), short((tokens(r) / r.total) * 1e3),
        count(r.transcript.rounds.length), steps.length ? fixed(1 + sum("accepted") / steps.length) : "–",
        steps.length ? percent(sum("accepted") / sum("drafted")) : "–"];
    })));
  }

  busy(on) {
    byId("send").disabled = on;
    byId("stop").hidden = !on;
    byId("compare").disabled = on || !this.last || this.last.speculative_decoding.enabled === false;
    byId("answer").setAttribute("aria-busy", `${on}`);
  }
}

const tokens = (run) => run.transcript.rounds.reduce((sum, round) => sum + round.tokens.length, 0);

function choose(select, options) {
  const chosen = select.value;
  put(select, options.map(([value, label]) => el("option", { value }, label)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}
