"""Prompts too long for a capture are read once at the start, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_graphs import PROMPTS
from tests.verifier_service.engines.test_prefill_graphs import read
from tests.verifier_service.engines.test_torch_engine import GREEDY, engine, llama
from verifier_service.engines import long_prompts, torch_engine
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.eager_steps import EagerSteps
from verifier_service.engines.long_prompts import lengths, read_once

__all__ = ["llama"]


def test_lengths_go_from_what_is_captured_to_what_a_step_may_have() -> None:
    assert list(lengths(2048, 3000)) == [2304, 2560, 2816]
    assert list(lengths(0, 512)) == [256, 512]
    assert not lengths(2048, 2048)
    assert not lengths(2048, 2100)


def test_lengths_end_where_few_kernels_are_new() -> None:
    assert lengths(2048, 1 << 20)[-1] == 8192


@pytest.mark.parametrize(
    ("tokens", "max_model_len", "blocks", "shares"),
    [
        (10, 100, 8, [10]),
        (10, 5, 8, [4, 4, 2]),
        (8, 5, 8, [4, 4]),
        # The cache holds less than the longest sequence.
        (10, 100, 1, [4, 4, 2]),
    ],
)
def test_a_step_has_as_few_sequences_as_can_be(
    tokens: int, max_model_len: int, blocks: int, shares: list[int]
) -> None:
    steps: list[list[Chunk]] = []
    read_once(steps.append, range(tokens, tokens + 1), CacheShape(blocks, 4), max_model_len)
    (chunks,) = steps
    assert [len(chunk.ids) for chunk in chunks] == shares
    for chunk in chunks:
        assert chunk.samples and chunk.start == 0
        assert len(chunk.blocks) * 4 >= len(chunk.ids)
        assert max(chunk.blocks) < blocks


def test_the_engine_reads_them_before_it_serves_and_answers_as_if_it_had_not(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_prompts, "_APART", 8)
    seen: list[int] = []
    run = EagerSteps.run

    def watched(self: EagerSteps, chunks: list[Chunk], *more: object) -> object:
        seen.append(sum(len(chunk.ids) for chunk in chunks))
        return run(self, chunks, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(EagerSteps, "run", watched)
    monkeypatch.setattr(torch_engine, "_loads_late", lambda device: True)
    sizes = {"max_captured_prefill_tokens": 16, "max_num_batched_tokens": 40}
    target = paged_engine(llama, monkeypatch, **sizes)
    assert seen == [24, 32, 40]
    found = target.run([read(0, PROMPTS[0], GREEDY)])
    monkeypatch.undo()
    assert found == engine(llama).run([read(0, PROMPTS[0], GREEDY)])


def test_no_other_device_waits_for_them(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "read_once", None)
    paged_engine(llama, monkeypatch)
    assert not torch_engine._loads_late(torch.device("cpu"))
    assert torch_engine._loads_late(torch.device("cuda"))
