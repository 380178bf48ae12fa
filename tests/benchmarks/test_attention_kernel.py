"""What the attention benchmark measures and prints; times need a card."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch

from benchmarks import attention_kernel
from benchmarks.attention_cases import CANDIDATES, CASES, TORCH, Case, lines
from benchmarks.attention_kernel import layout_of


def test_contexts_are_those_of_serving_and_the_same_every_time() -> None:
    many = Case(128, 5, True)
    assert many.contexts() == many.contexts()
    assert min(many.contexts()) >= 40 and 1000 < max(many.contexts()) <= 1800
    assert 300 < fmean(many.contexts()) < 400
    assert Case(8, 1, False).contexts() == [512] * 8


@pytest.mark.parametrize(("queries", "padding"), [(1, 1), (5, 0)])
def test_one_sequence_is_a_step_for_two(queries: int, padding: int) -> None:
    layout = layout_of(Case(1, queries, True), torch.device("cpu"))
    assert layout.cu_query.tolist() == [0, queries, queries + padding]
    assert layout.used.tolist() == [344, 1]


def test_no_two_sequences_share_a_page() -> None:
    case = Case(32, 5, True)
    layout = layout_of(case, torch.device("cpu"))
    own = [
        page
        for row, context in zip(layout.table.tolist(), case.contexts(), strict=True)
        for page in row[: -(-context // 256)]
    ]
    assert sorted(own) == list(range(len(own)))


def test_the_fastest_are_marked_and_what_was_wrong_is_a_gap() -> None:
    names = [TORCH, *(candidate.name for candidate in CANDIDATES)]
    times = {(name, case): 10.0 for name in names for case in CASES}
    times |= {("2 warps", case): 8.0 for case in CASES if case.queries == 5}
    del times["4 stages", CASES[0]]
    told = lines(times)
    assert len(told) <= 60 and max(map(len, told)) <= 120
    assert sum(line.count("8.0*") for line in told) == 8
    (first, second) = (line for line in told if line.startswith("4 stages"))
    assert first.count(" - ") == 1 and " - " not in second
    assert "of 5 queries, times as shipped (geometric mean): 2 warps 0.80" in told[-2]


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="there is none"):
        attention_kernel.main()
