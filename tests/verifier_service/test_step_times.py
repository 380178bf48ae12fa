from __future__ import annotations

import pytest

from verifier_service.step_times import BOUNDS_S, StepHistograms, StepTimesTotal

MS = 1_000_000


def total(histogram: str, *steps: tuple[int, int, bool, bool]) -> tuple[int, float]:
    """(count, sum) of one histogram after steps of (wait ns, verify ns, drafted, prefilled)."""
    times = StepTimesTotal()
    for wait, verify, drafted, prefilled in steps:
        times.observe(wait, verify, drafted=drafted, prefilled=prefilled)
    found = getattr(times.snapshot(), histogram)
    return sum(found.counts), found.sum_s


@pytest.mark.parametrize(
    ("kind", "drafted", "prefilled"),
    [
        ("plain", False, False),
        ("verify", True, False),
        ("prefill", False, True),
        ("prefill", True, True),
    ],
)
def test_a_step_counts_once_by_what_it_did(kind: str, drafted: bool, prefilled: bool) -> None:
    step = (0, 5 * MS, drafted, prefilled)
    assert total(kind, step, step) == (2, pytest.approx(0.01))
    for other in {"plain", "verify", "prefill"} - {kind}:
        assert total(other, step) == (0, 0.0)


def test_only_steps_that_asked_have_waited() -> None:
    steps = [(0, MS, False, False), (2 * MS, MS, False, False), (MS, MS, True, False)]
    assert total("draft_wait", *steps) == (2, pytest.approx(0.003))


def test_a_bound_belongs_to_its_bucket_and_the_last_has_no_bound() -> None:
    times = StepTimesTotal()
    for seconds in (BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], BOUNDS_S[-1] * 2):
        times.observe(0, round(seconds * 1e9), drafted=False, prefilled=False)
    counts = times.snapshot().plain.counts
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (1, 1, 1, 1)
    assert sorted(BOUNDS_S) == list(BOUNDS_S)


def test_a_snapshot_stays_as_it_was() -> None:
    times = StepTimesTotal()
    before = times.snapshot()
    times.observe(MS, MS, drafted=True, prefilled=False)
    assert before == StepHistograms()
    assert times.snapshot() != before


def test_the_message_has_a_count_for_each_bound_and_one_above() -> None:
    times = StepTimesTotal()
    times.observe(MS, 3 * MS, drafted=True, prefilled=False)
    message = times.snapshot().to_proto()
    assert list(message.verify.upper_bounds) == list(BOUNDS_S)
    assert len(message.verify.counts) == len(BOUNDS_S) + 1
    assert message.verify.sum == pytest.approx(0.003)
    assert sum(message.draft_wait.counts) == 1
