"""Constrained requests with the drafts of real proposers, and of several at once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from proposer_service.proposers.base import Proposer
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from tests.regressions.bench import Bench, seeded
from tests.regressions.network import ProposerServer, Wire
from tests.verifier_service.grammar.toy_grammar import STOP, TOY, constraint, text
from verifier_service.messages import FinishReason, NoDrafts, Sampling

PATTERNS = ["(ab,){2,6}1", r"\[(1,)*1\]", "(a|bc){4,12}", None]
PROMPT = [0, 1, 8, 6, 5, 8] * 3


def make(method: str) -> Proposer:
    return NgramProposer(1, 3) if method == "ngram" else SuffixProposer()


def run(source: Any, k: int, temperature: float) -> Bench:
    bench = Bench(source, k=k, toy=TOY)
    for i in range(8):
        pattern = PATTERNS[i % len(PATTERNS)]
        sampling: Sampling = seeded(
            i, 30, temperature=temperature, stop_token_ids=frozenset({STOP})
        )
        structure = None if pattern is None else constraint(pattern)
        bench.add(f"r{i}", PROMPT, sampling, constraint=structure)
    bench.finish()
    return bench


@pytest.mark.parametrize("method", ["ngram", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_drafts_of_real_proposers_change_no_token(method: str, temperature: float, k: int) -> None:
    wire = Wire(ProposerServer(make(method)), k=k, vocabulary_size=TOY.vocab_size)
    drafted = run(wire, k, temperature)
    plain = run(NoDrafts(), 0, temperature)
    accepted = 0
    for i in range(8):
        name, pattern = f"r{i}", PATTERNS[i % len(PATTERNS)]
        assert drafted.tokens(name) == plain.tokens(name)
        assert drafted.reason(name) is plain.reason(name)
        if pattern is not None and drafted.reason(name) is FinishReason.STOP:
            assert re.fullmatch(pattern, text(drafted.tokens(name)))
            accepted += drafted.acceptance(name).num_accepted_draft_tokens
    assert accepted > 0
