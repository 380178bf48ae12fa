"""What a core is told of its engine's step times before it serves."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from verifier_service.build import add_many, attention_costs, profiled_rows
from verifier_service.costs import CostTable
from verifier_service.engines.base import CacheShape
from verifier_service.messages import ModelInfo
from verifier_service.settings import VerifierSettings


class Captured:
    """An engine whose rows of one sequence are dear beyond 9, those of many are not."""

    def __init__(self, blocks: int) -> None:
        self.cache = CacheShape(blocks, 16)
        self.asked: list[int] = []

    def profile(
        self, counts: Sequence[int], context: int, repeats: int = 5, sequences: int = 1
    ) -> dict[int, float]:
        self.asked.append(sequences)
        return {count: 0.005 + 1e-5 * sequences * count for count in counts}


def settings(tmp_path: Path, sequences: int = 32) -> VerifierSettings:
    return VerifierSettings(
        model=str(tmp_path),
        listen="127.0.0.1:0",
        served_model_name="m",
        num_speculative_tokens=8,
        max_num_seqs=sequences,
    )


def alone() -> CostTable:
    return CostTable.from_profile({1: 0.005, 9: 0.005, 17: 0.012, 33: 0.013}, 256)


def test_drafts_of_many_sequences_are_not_priced_by_the_rows_of_one(tmp_path: Path) -> None:
    costs = alone()
    assert costs.seconds(24, 8, 8 * 256) > 0.011
    add_many(costs, Captured(10_000), settings(tmp_path))
    assert costs.seconds(24, 8, 8 * 256) == pytest.approx(0.005 + 24e-5)
    assert costs.seconds(32, 32, 32 * 256) == pytest.approx(0.005 + 32e-5)
    assert costs.seconds(9) == pytest.approx(0.005), "one sequence keeps its own"


def test_as_many_are_measured_as_are_served_and_have_room(tmp_path: Path) -> None:
    plenty = Captured(10_000)
    add_many(alone(), plenty, settings(tmp_path))
    assert plenty.asked == [2, 4, 8, 16, 32]
    # 17 blocks hold 256 tokens and a round.
    scarce = Captured(17 * 8)
    add_many(alone(), scarce, settings(tmp_path))
    assert scarce.asked == [2, 4, 8]


def test_added_costs_go_on_learning(tmp_path: Path) -> None:
    costs = alone()
    add_many(costs, Captured(10_000), settings(tmp_path))
    for _ in range(80):
        costs.observe(16, 8, 8 * 256, 0.009)
    assert costs.seconds(16, 8, 8 * 256) == pytest.approx(0.009, rel=0.02)
    assert costs.seconds(32, 32, 32 * 256) == pytest.approx(0.005 + 32e-5)


class Long(Captured):
    """An engine whose steps get dearer by each token of context, and by each of them and row."""

    def __init__(self, context: int = 4096) -> None:
        super().__init__(context // 16)
        self.model = ModelInfo("long", 10, context, (), "none", "none", "none")
        self.counts: list[tuple[int, ...]] = []

    def profile(
        self, counts: Sequence[int], context: int, repeats: int = 5, sequences: int = 1
    ) -> dict[int, float]:
        self.counts.append(tuple(counts))
        return {count: 0.005 + context * (1e-6 + 1e-8 * count) for count in counts}


@pytest.mark.parametrize("ceiling", [1, 2, 3, 4, 5, 7, 8, 12, 16, 32])
def test_the_price_of_context_is_told_whatever_the_most_drafts_are(ceiling: int) -> None:
    engine = Long()
    profile = engine.profile(profiled_rows(ceiling), 256)
    by_token, by_row = attention_costs(engine, profile)
    assert by_token == pytest.approx(1e-6)
    assert by_row == pytest.approx(1e-8)
    # Over the longer context, too, no more is measured than two counts that were profiled.
    assert len(engine.counts[1]) == 2
    assert set(engine.counts[1]) <= set(engine.counts[0])


def test_context_has_no_price_where_there_is_no_room_or_one_count() -> None:
    engine = Long(context=256)
    assert attention_costs(engine, engine.profile(profiled_rows(4), 256)) == (0.0, 0.0)
    engine = Long()
    assert attention_costs(engine, engine.profile((1,), 256)) == (0.0, 0.0)
