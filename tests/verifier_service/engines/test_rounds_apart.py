"""Rounds beside captured prompts: which sequences they are, and that two attentions make one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.verifier_service.engines.paged import attend_by_definition, paged_engine
from tests.verifier_service.engines.test_graphs import GREEDY, PROMPTS, RANDOM, verify
from tests.verifier_service.engines.test_prefill_graphs import (
    FILTERED,
    SMALL,
    read,
    replays_only,
)
from tests.verifier_service.engines.test_torch_engine import engine, llama
from verifier_service.engines import forward, prefill_graphs
from verifier_service.engines.attention import StepLayout
from verifier_service.engines.base import Chunk
from verifier_service.engines.paged_agreement import agrees_apart
from verifier_service.engines.rounds_apart import rounds_apart
from verifier_service.engines.short_attention import ShortAttention
from verifier_service.engines.torch_engine import TorchEngine

__all__ = ["llama"]


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def layout_of(lengths: list[int]) -> StepLayout:
    bounds = torch.nn.functional.pad(ints(lengths).cumsum(0), (1, 0)).to(torch.int32)
    used = ints([length + 40 for length in lengths])
    table = torch.arange(2 * len(lengths), dtype=torch.int32).reshape(-1, 2)
    return StepLayout(
        bounds, cu_query=bounds, used=used, table=table, max_query=64, max_key=64 + 64
    )


@pytest.mark.parametrize(
    ("lengths", "rounds"),
    [
        ([1, 3, 2, 20, 7, 0, 0], 3),
        # A prompt's short end behind rounds is read as a round is.
        ([1, 2, 0], 3),
        ([30, 1], 0),
        ([2, 4, 1], 1),
        ([0, 0], 2),
    ],
)
def test_rounds_are_the_sequences_in_front_of_the_first_prompt(
    lengths: list[int], rounds: int
) -> None:
    layout = layout_of(lengths)
    apart = rounds_apart(layout, 3)
    assert apart.rounds is not None
    few, many = apart.rounds.cu_query, apart.cu_query
    assert few is not None
    assert many is not None
    assert few.dtype == many.dtype == torch.int32
    none = [0] * len(lengths)
    assert few.diff().tolist() == lengths[:rounds] + none[rounds:]
    assert many.diff().tolist() == none[:rounds] + lengths[rounds:]
    # Queries stay where they are.
    assert many[0] == few[-1] == sum(lengths[:rounds])
    assert many[-1] == sum(lengths)
    assert (apart.rounds.max_query, apart.max_query) == (3, 64)


def test_two_attentions_give_what_one_gives() -> None:
    generator = torch.Generator().manual_seed(2)
    lengths = [1, 3, 2, 20, 7, 0]
    layout = layout_of(lengths)
    query = torch.randn(40, 4, 16, generator=generator)
    keys, values = (torch.randn(12, 32, 2, 16, generator=generator) for _ in range(2))
    wanted = attend_by_definition(query, keys, values, layout, 0.25, 0)
    apart = rounds_apart(layout, 3)
    assert apart.rounds is not None
    out = attend_by_definition(query, keys, values, apart, 0.25, 0)
    assert (out[:6] == 1e30).all()
    few = attend_by_definition(query, keys, values, apart.rounds, 0.25, 0)
    assert torch.equal(torch.cat([few[:6], out[6:]]), wanted)


class Kernels:
    """`paged_triton` by its definition, for up to three queries; notes what it was called for."""

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []

    def serves(self, heads: int, keys: Tensor, max_query: int) -> bool:
        return max_query <= 3

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        cu_query: Tensor,
        used: Tensor,
        table: Tensor,
        max_query: int,
        scale: float,
        out: Tensor | None = None,
    ) -> Tensor:
        self.lengths.append(cu_query.diff().tolist())
        layout = StepLayout(
            cu_query,
            cu_query=cu_query,
            used=used,
            table=table,
            max_query=max_query,
            max_key=1 << 20,
        )
        found = attend_by_definition(query, keys, values, layout, scale, 0)
        if out is None:
            return found
        own = int(cu_query[-1])
        out[:own] = found[:own]
        return out


def paged(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernels: Kernels,
    *,
    apart: bool = True,
    **changes: Any,
) -> TorchEngine:
    kernel = ShortAttention(kernels, apart=apart)
    monkeypatch.setattr(forward, "short_attention", lambda cache, heads: kernel)
    return paged_engine(folder, monkeypatch, **{**SMALL, **changes})


FIRST = [read(row, PROMPTS[row][:-1], GREEDY) for row in range(2)]
MIXED = [
    verify(0, PROMPTS[0], [3, 4], RANDOM),
    verify(1, PROMPTS[1], [], GREEDY),
    read(2, [7, 5, 3, 11, 13, 17], FILTERED),
]


def run(target: TorchEngine, *steps: list[Chunk]) -> list[Any]:
    return [target.run(chunks) for chunks in steps]


def test_rounds_in_a_prompts_forward_go_through_the_kernel_for_few_queries(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run(engine(llama), FIRST, MIXED)
    kernels = Kernels()
    target = replays_only(paged(llama, monkeypatch, kernels), monkeypatch)
    # However many keys are behind them.
    monkeypatch.setattr(prefill_graphs, "_MOST_SHARED_KEYS", 0)
    kernels.lengths.clear()
    assert run(target, FIRST, MIXED) == wanted
    layers = len(kernels.lengths) // 2
    assert kernels.lengths[layers:] == [[3, 1, 0]] * layers


@pytest.mark.parametrize(("drafts", "apart"), [(3, True), (2, False)])
def test_rounds_share_the_prompts_attention_where_the_kernel_does_not_serve(
    llama: Path, monkeypatch: pytest.MonkeyPatch, drafts: int, apart: bool
) -> None:
    """They have more tokens than it takes, or it was not right beside the other one."""
    wanted = run(engine(llama), FIRST, MIXED)
    kernels = Kernels()
    changes = {"num_speculative_tokens": drafts, "apart": apart}
    target = replays_only(paged(llama, monkeypatch, kernels, **changes), monkeypatch)
    kernels.lengths.clear()
    assert run(target, FIRST, MIXED) == wanted
    assert kernels.lengths == []


def test_two_attentions_that_do_not_make_one_are_told(caplog: pytest.LogCaptureFixture) -> None:
    keys = torch.zeros(3, 32, 2, 16)
    kernels = Kernels()

    def through(query: Tensor, *arguments: Any, out: Tensor | None = None) -> Tensor:
        *bounds, most, scale = arguments
        return kernels.attend(query, *bounds, most, scale, out)

    assert agrees_apart(through, through, keys, 4, 3)
    assert kernels.lengths[-1] == [3, 1, 3, 0, 2, 0, 0, 0]

    def one_row_short(query: Tensor, *arguments: Any, out: Tensor | None = None) -> Tensor:
        before = None if out is None else out[0].clone()
        found = through(query, *arguments, out=out)
        if before is not None:
            found[0] = before
        return found

    assert not agrees_apart(one_row_short, through, keys, 4, 3)
    assert "rounds apart" in caplog.text
