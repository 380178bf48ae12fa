"""Costs and the speed-up they mean, against sums done by hand and by enumeration."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from outrider.acceptance import Round
from outrider.advise.costs import StepCost, assumed_cost, parse_step_cost
from outrider.advise.replay import Tally
from outrider.advise.speedup import drafts_of_step, speedup
from outrider.errors import InputError


def tally_of(rounds: list[tuple[int, int]], k: int = 4) -> Tally:
    """From (drafted, accepted) of each round."""
    tally = Tally(k)
    for drafted, accepted in rounds:
        tally.add(Round(0, drafted, drafted, accepted, accepted + 1))
    return tally


def test_a_number_is_what_one_more_row_adds() -> None:
    cost = parse_step_cost("0.1")
    assert cost.curve(3) == pytest.approx([0.0, 1.0, 1.1, 1.2])
    assert not cost.assumed and assumed_cost().assumed


def test_a_table_is_read_between_its_rows_as_the_controller_reads_it() -> None:
    cost = parse_step_cost('{"1": 20, "5": 28, "9": 28.0}')
    assert cost.curve(9)[1:] == pytest.approx([20, 22, 24, 26, 28, 28, 28, 28, 28])
    assert cost.last_row == 9


def test_a_table_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"1": 20, "2": 30}')
    assert parse_step_cost(str(path)).milliseconds == {1: 20.0, 2: 30.0}


@pytest.mark.parametrize(
    "value",
    [
        *("", "x", "-1", "nan", "[1]", "{}", "true", "1e308", "x" * 5000, "\0"),
        *('{"0": 1}', '{"a": 1}', '{"1": 0}', '{"1": "2"}', '{"1": 1e308}', '{"1": NaN}'),
        *(f'{{"{10**20}": 1}}', f'{{"{"9" * 5000}": 1}}', "{" * 5000),
    ],
    ids=lambda value: value[:12],
)
def test_a_cost_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="--step-cost") as caught:
        parse_step_cost(value)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cost.json").write_bytes(b"\xff")
    # A long path would be cut in the message.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"cost\.json cannot be read: .* it must be a JSON object"):
        parse_step_cost("cost.json")


def test_free_rows_give_the_tokens_of_a_round() -> None:
    tally = tally_of([(4, 4), (4, 0), (0, 0)])
    for sequences in (1, 3, 64):
        assert speedup(tally, StepCost("given", row_cost=0.0), sequences) == pytest.approx(7 / 3)


def test_one_sequence_by_hand() -> None:
    tally = tally_of([(4, 4), (4, 0), (0, 0)])
    # 7 tokens in steps of 5, 5 and 1 rows; plain decoding takes 7 steps of one row.
    cost = StepCost("given", {1: 10.0, 5: 14.0})
    assert speedup(tally, cost, 1) == pytest.approx(7 * 10 / (14 + 14 + 10))
    assert speedup(tally, cost, 1, 2.0) == pytest.approx(7 * 10 / (14 + 14 + 10 + 3 * 2))


def test_several_sequences_by_enumeration() -> None:
    rounds = [(4, 2), (1, 1), (0, 0), (3, 0)]
    tally = tally_of(rounds)
    # A cost in steps: the mean number of rows would give another answer.
    cost = StepCost("given", {1: 10.0, 8: 10.0, 9: 30.0, 15: 30.0})
    curve = cost.curve(15)
    steps = list(itertools.product(rounds, repeat=3))
    spent = math.fsum(curve[3 + sum(drafted for drafted, _ in step)] for step in steps)
    emitted = sum(3 + sum(accepted for _, accepted in step) for step in steps)
    expected = emitted * (curve[3] / 3) / spent
    assert speedup(tally, cost, 3) == pytest.approx(expected)


@pytest.mark.parametrize("sequences", [1, 2, 5, 8])
def test_the_drafts_of_a_step_are_a_distribution(sequences: int) -> None:
    chances = drafts_of_step([2, 0, 1], sequences)
    assert chances.sum() == pytest.approx(1.0)
    mean = sum(count * chance for count, chance in enumerate(chances))
    assert mean == pytest.approx(sequences * 2 / 3)


def test_nothing_decoded_is_no_gain() -> None:
    assert speedup(Tally(4), assumed_cost(), 1) == 1.0
