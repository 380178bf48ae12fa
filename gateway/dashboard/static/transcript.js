// An answer as it streams in: which tokens each round emitted, and who guessed them.

/** A round: its figures as the gateway told them, and
 *  `tokens`: [{text, logprob, drafted}], `rejected`: ids of drafts that were not emitted,
 *  `cut`: whether those were left out because the answer ended, not because they were wrong. */
export class Transcript {
  constructor() {
    this.rounds = [];
    this.text = "";
    this.finishReason = null;
    this.usage = null;
    this.waiting = { tokens: [], rounds: [] };
    // A character may be spread over tokens: it is shown with its last one.
    this.decoder = new TextDecoder();
  }

  /** Takes one chunk of a stream; the rounds that it completes. */
  take(chunk) {
    const choice = chunk.choices?.[0];
    if (choice) {
      this.text += choice.delta?.content ?? "";
      this.finishReason = choice.finish_reason ?? this.finishReason;
      for (const entry of choice.logprobs?.content ?? []) this.waiting.tokens.push(entry);
    }
    this.usage = chunk.usage ?? this.usage;
    this.waiting.rounds.push(...(chunk.speculative_decoding?.rounds ?? []));
    const known = this.rounds.length;
    while (this.waiting.rounds.length && this.waiting.tokens.length >= this.waiting.rounds[0].emitted) {
      this.rounds.push(this.finish(this.waiting.rounds.shift()));
    }
    return this.rounds.slice(known);
  }

  /** Tokens by origin: [[proposer or null for the target's own, tokens]], and the rejected ones. */
  origins() {
    const counts = new Map();
    let rejected = 0;
    for (const round of this.rounds) {
      if (!round.cut) rejected += round.rejected.length;
      for (const token of round.tokens) {
        const origin = token.drafted ? round.proposer : null;
        counts.set(origin, (counts.get(origin) ?? 0) + 1);
      }
    }
    return { counts: [...counts], rejected };
  }

  finish(round) {
    const entries = this.waiting.tokens.splice(0, round.emitted);
    const rejected = round.draft_token_ids.slice(round.accepted);
    return {
      ...round,
      number: this.rounds.length + 1,
      rejected,
      cut: rejected.length > 0 && round.emitted === round.accepted,
      tokens: entries.map((entry, i) => ({
        text: this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }),
        logprob: entry.logprob,
        drafted: i < round.accepted,
      })),
    };
  }
}
