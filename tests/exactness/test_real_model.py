"""A slice of `make exactness`: the real model, the real proposers, every draft verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.exact_cases import jobs, matrix
from benchmarks.exact_generators import InprocessGenerator
from benchmarks.exact_run import Check, Store, describe
from benchmarks.plain_target import PlainTarget
from benchmarks.transformers_system import load_tokenizer


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(900)
def test_speculation_changes_no_token(smollm2: Path) -> None:
    prompts, tokens, clients = 3, 12, 3
    cases = [
        *matrix(["both", "adversary"], [8], [0.0], [1]),
        *matrix(["ngram", "suffix", "adversary"], [4], [1.0], [clients]),
    ]
    work = jobs(load_tokenizer(smollm2), prompts)
    lines: list[str] = []
    with InprocessGenerator(smollm2, 8, clients, compile=False) as generator:
        store = Store(None, {})
        results = Check(generator, PlainTarget(smollm2), work, tokens, store, lines.append).run(
            cases
        )
    assert len(results) == len(cases) + len({case.temperature for case in cases})
    assert all(result.outputs == prompts for result in results)
    assert [describe(result) for result in results if not result.passed] == []
    # Both outcomes were exercised: drafts that were accepted and drafts that were not.
    accepted = sum(result.accepted for result in results)
    assert 0 < accepted < sum(result.drafted for result in results)
