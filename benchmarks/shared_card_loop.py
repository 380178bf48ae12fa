"""The core over a card that computes nothing, beside a draft model that has to share it.

    python -m benchmarks.shared_card_loop TRAFFIC --right 0.95,0.6,0.2 --clients 1,8,32

TRAFFIC and the card are those of `card_loop`. The draft model is pretended: it is asked about a
step's sequences together, answers after `--answer-ms`, and is right at each draft with the chance
`--right`. What it computes while the target's step runs takes longer, and makes that step longer.
It looks ahead for nobody. Plain decoding and drafts, one after the other; no figure is a card's.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.card_loop import MAX_MODEL_LEN, VOCABULARY, core_over, read, speed
from benchmarks.gpu_options import numbers
from benchmarks.gpu_trace_load import Load
from benchmarks.paced_card import PacedCard
from outrider import turns
from verifier_service.messages import DraftBlock, Expected, Foreseen, NoDrafts, SequenceView

DRAFTS = 4
# No recorded token.
WRONG = 3
# How much longer an answer takes beside the target's step, and that step beside an answer.
BESIDE, STEP_BESIDE = 1.7, 2.5e-3


class SharedCard(PacedCard):
    """A card whose steps are longer while somebody else computes on it."""

    until = 0.0

    def step_seconds(self, sequences: int, tokens: int, prompt_tokens: int = 0) -> float:
        longer = STEP_BESIDE * self._scale if time.perf_counter() < self.until else 0.0
        return super().step_seconds(sequences, tokens, prompt_tokens) + longer


class SharingSource(NoDrafts):
    """A `DraftSource` as a pool is that has one draft model on the target's card."""

    looks_ahead = False

    def __init__(
        self,
        card: SharedCard,
        texts: Mapping[tuple[int, ...], Sequence[int]],
        right: float,
        seconds: float,
    ) -> None:
        self._card, self._texts, self._right, self._seconds = card, texts, right, seconds
        self._rng = random.Random(1)
        self._blocks: dict[int, DraftBlock] = {}
        self.waits = 0

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        wanted = [view for view in views if view.max_draft_tokens > 0]
        self._blocks = {view.sequence_id: self._block(view) for view in wanted}
        if wanted:
            begins = max(time.perf_counter(), self._card.until)
            self._card.until = begins + BESIDE * self._seconds

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        if not wait or not self._blocks:
            return {}
        self.waits += 1
        # Nothing else runs meanwhile.
        time.sleep(self._seconds)
        self._card.until = 0.0
        blocks, self._blocks = self._blocks, {}
        return {sequence_id: [block] for sequence_id, block in blocks.items()}

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen:
        rests = {}
        unknown = 0
        for view in views:
            if view.max_draft_tokens > 0:
                unknown += 1
                rest = self._rest(view.sequence_id, view.ids)
                if rest is not None:
                    rests[view.sequence_id] = [rest]
        return Foreseen({}, unknown, rests)

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected:
        known = 0
        for sequence_id, ids in outcomes:
            block = self._ready(sequence_id)
            known += block is not None and _begins_with(block, ids)
        return Expected(known, len(outcomes) - known)

    def _ready(self, sequence_id: int) -> DraftBlock | None:
        return self._blocks.get(sequence_id) if time.perf_counter() >= self._card.until else None

    def _rest(self, sequence_id: int, ids: Sequence[int]) -> DraftBlock | None:
        block = self._ready(sequence_id)
        if block is None or not _begins_with(block, ids[block.base_length :]):
            return None
        left = block.token_ids[len(ids) - block.base_length :]
        return DraftBlock(block.proposer, len(ids), left, lookahead_hit=True)

    def _block(self, view: SequenceView) -> DraftBlock:
        text = self._texts[tuple(view.ids[: view.prompt_length])]
        at = len(view.ids)
        drafts = text[at : at + min(DRAFTS, view.max_draft_tokens)]
        ids = [token if self._rng.random() < self._right else WRONG for token in drafts]
        return DraftBlock("draft_model", at, tuple(ids))


def _begins_with(block: DraftBlock, ids: Sequence[int]) -> bool:
    length = len(ids)
    return 0 < length < len(block.token_ids) and block.token_ids[:length] == tuple(ids)


def run(options: argparse.Namespace) -> None:
    recorded = read(options.traffic)
    prompts = [prompt for prompt, _ in recorded]
    texts = {tuple(prompt): [*prompt, *answer] for prompt, answer in recorded}
    turns.be_short()
    for right in options.right:
        for clients in options.clients:
            card = SharedCard(
                recorded, clients, options.scale, vocabulary=VOCABULARY, max_model_len=MAX_MODEL_LEN
            )
            took = options.scale * (options.answer_ms + 0.12 * clients) * 1e-3
            source = SharingSource(card, texts, right, took)
            found = {}
            with core_over(card, source, clients) as core:
                for speculating in (False, True):
                    load = Load(core, prompts, clients, 0.0, options.new_tokens, speculating)
                    found[speculating], accepted = speed(load, options.seconds, options.settle)
                state = core.stats().speculation_state
            print(
                f"right {right:g}, {clients} clients: {found[True] / found[False]:.3f} of plain "
                f"({found[False] * options.scale:.0f} tokens a second on the card's clock), "
                f"{accepted:.2f} accepted a drafted round, {source.waits} waits; {state[:60]}",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shared_card_loop",
        description="The core's loop over no card, which a pretended draft model shares.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("traffic", type=Path, help="recorded answers")
    add("--right", type=numbers(float), default=[0.95, 0.6, 0.2], help="chance of each draft")
    add("--clients", type=numbers(int), default=[1, 8, 32])
    add("--answer-ms", type=float, default=4.7, help="alone on the card; 0.12 more a sequence")
    add("--scale", type=float, default=1.5, help="how much slower than the card")
    add("--seconds", type=float, default=10.0, help="of plain decoding, and of drafts")
    add("--settle", type=float, default=1.0, help="before that")
    add("--new-tokens", type=int, default=128)
    run(parser.parse_args(sys.argv[1:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
