"""A real n-gram proposer over gRPC: whatever a round's outcome, its answer is there beforehand."""

from __future__ import annotations

import random
from pathlib import Path

from proposer_service.proposers.ngram import NgramProposer
from tests.faults.proposer_process import ProposerProcess, all_connected, attach, eventually
from verifier_service.messages import Sampling, SequenceView

K = 4
ROUNDS = 60


def a_view(sequence_id: int, ids: list[int], prompt_length: int) -> SequenceView:
    return SequenceView(sequence_id, ids, prompt_length, K, Sampling())


def test_after_its_first_step_no_sequence_is_ever_waited_for(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/p.sock"
    process = ProposerProcess(address, prompt_lookup_min=2, prompt_lookup_max=4)
    pool = attach([address])
    try:
        eventually(lambda: all_connected(pool))
        rng = random.Random(5)
        truth = NgramProposer(2, 4)
        texts = [[rng.randrange(12) for _ in range(40)] for _ in range(5)]
        for number, ids in enumerate(texts):
            truth.open(number, ids, 40, "")
        hits = 0
        for step in range(ROUNDS):
            views = [a_view(number, ids, 40) for number, ids in enumerate(texts)]
            if step:
                # The forward runs as long as it takes for this; nothing else is waited for.
                eventually(lambda views=views: not pool.foreseen(views).unknown)  # type: ignore[misc]
                assert pool.foreseen(views).unknown == 0
            pool.send(views, [])
            drafts = pool.collect(wait=not step)
            for number, ids in enumerate(texts):
                said = truth.propose(number, K).ids
                blocks = drafts.get(number, [])
                assert [block.token_ids for block in blocks] == ([said] if said else [])
                hits += bool(said) and bool(step)
                # Some rounds verify all of it, some its beginning, some nothing.
                verified = said[: rng.randrange(K + 1)]
                accepted = verified[: rng.randrange(K + 1)]
                new = [*accepted, rng.randrange(12)]
                ids += new
                truth.extend(number, new)
        state = pool.states()[0]
        assert (state.lookahead_hits, state.lookahead_misses) == (hits, 0)
        assert state.lookahead_none == (ROUNDS - 1) * len(texts) - hits
        assert min(state.lookahead_hits, state.lookahead_none) > 50
        assert state.dropped == {}
    finally:
        pool.close()
        process.kill()
