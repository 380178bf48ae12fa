"""What makes a soak fail, and that the report says it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from benchmarks.soak_answers import Answer, Choice
from benchmarks.soak_draw import Place, SoakRequest
from benchmarks.soak_kinds import KINDS
from benchmarks.soak_leaks import AtEnd, Trend
from benchmarks.soak_replay import Replay, Verdict
from benchmarks.soak_report import SoakReport
from benchmarks.soak_run import SoakResult
from benchmarks.soak_tally import KEPT_FAILURES, Tally

REQUEST = SoakRequest(1, Place.CHAT, {"messages": [], "max_tokens": 3}, ("seed",))
EQUAL = Replay(1, 0, 3, Verdict.EQUAL)


def right_answer() -> Answer:
    return Answer(status=200, choices={0: Choice("abc", [1, 2, 3], finish_reason="length")})


def good() -> SoakResult:
    """A result with nothing to complain of."""
    tally = Tally()
    for kind in KINDS:
        tally.add(SoakRequest(0, Place.CHAT, {}, (kind.name,)), right_answer(), [])
    tally.add_replays(REQUEST, right_answer(), [EQUAL])
    return SoakResult(
        tally,
        seconds=60.0,
        kills=Counter(ngram=2),
        trends=[Trend("verifier", "rss_mib", 100, 101, 137)],
        at_end=[AtEnd("running requests", 0, 0)],
        totals={"draft tokens verified": 9, "draft tokens accepted": 4},
    )


def report(result: SoakResult, **changes: Any) -> SoakReport:
    return SoakReport("python -m x", {"cores": "2"}, {"outrider": "0"}, {}, result, **changes)


def test_nothing_to_complain_of_passes() -> None:
    made = report(good())
    assert made.problems == []
    assert made.passed
    assert "**Passed.**" in made.to_markdown()
    assert "1 outputs (3 tokens) re-run plainly: 1 equal" in made.to_markdown()


def spoil(result: SoakResult, what: str) -> None:
    if what == "request":
        result.tally.add(REQUEST, Answer(status=503), ["status 503 for a valid request"])
    elif what == "replay":
        wrong = Replay(1, 0, 3, Verdict.DIFFERENT, 1, 5, 6, 0.2)
        result.tally.add_replays(REQUEST, right_answer(), [wrong])
    elif what == "missing":
        result.missing.append(("min_p", Place.CHAT))
    elif what == "trend":
        result.trends.append(Trend("gateway", "fds", 10, 40, 18))
    elif what == "held":
        result.at_end.append(AtEnd("sequences open at ngram", 1, 0))
    elif what == "kills":
        result.kills.clear()
    elif what == "drafts":
        result.totals["draft tokens verified"] = 0
    elif what == "compared":
        result.tally.replays.clear()
    elif what == "kind":
        del result.tally.answered_by_kind["n"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("request", "1 requests failed"),
        ("replay", "1 requests failed"),
        ("missing", "not offered: min_p at /v1/chat/completions"),
        ("trend", "gateway fds grew from 10 to 40, 18 is allowed"),
        ("held", "sequences open at ngram at the end: 1, 0 is allowed"),
        ("kills", "no proposer was killed"),
        ("drafts", "no draft token was verified"),
        ("compared", "nothing was compared with a plain re-run"),
        ("kind", "not one request was answered of kind: n"),
    ],
)
def test_each_of_these_fails_the_soak(what: str, words: str) -> None:
    result = good()
    spoil(result, what)
    made = report(result)
    assert made.problems == [words]
    assert not made.passed
    page = made.to_markdown()
    assert "**Failed.**" in page and words in page
    assert json.loads(json.dumps(made.to_json()))["problems"] == [words]


def test_a_complaint_in_the_log_fails_the_soak() -> None:
    assert report(good(), log_complaints=["verifier | Traceback"]).problems == [
        "the log says: verifier | Traceback"
    ]


def test_a_soak_without_kills_may_have_none() -> None:
    result = good()
    result.kills.clear()
    assert report(result, kills_expected=False).passed


def test_a_numerical_tie_is_reported_and_passes() -> None:
    result = good()
    result.tally.add_replays(
        REQUEST, right_answer(), [Replay(7, 0, 3, Verdict.NUMERICAL, 1, 5, 6, 2e-5)]
    )
    made = report(result)
    assert made.passed
    (one,) = made.to_json()["replays"]["unequal"]
    assert (one["number"], one["verdict"], one["gap"]) == (7, "numerical", 2e-5)
    assert "1 parted at a numerical tie" in made.to_markdown()


def test_a_failure_is_kept_with_its_request_and_answer() -> None:
    tally = Tally()
    for _ in range(KEPT_FAILURES + 5):
        tally.add(REQUEST, Answer(status=500, message="oh"), ["status 500"])
    assert tally.num_failures == KEPT_FAILURES + 5
    assert len(tally.failures) == KEPT_FAILURES
    kept = tally.failures[0].to_json()
    assert kept["what"] == "status 500"
    assert kept["request"]["body"] == {"messages": [], "max_tokens": 3}
    assert kept["answer"]["message"] == "oh"


def test_outcomes_are_told_apart() -> None:
    tally = Tally()
    tally.add(REQUEST, right_answer(), [])
    tally.add(REQUEST, Answer(left=True), [])
    refused = SoakRequest(2, Place.CHAT, {}, ("refused: n 0",), refused="n")
    tally.add(refused, Answer(status=400, param="n"), [])
    assert (tally.requests, tally.answered, tally.left, tally.refused) == (3, 1, 1, 1)
    assert tally.tokens == 3
    # Whoever leaves has not been answered.
    assert (tally.asked_by_kind["seed"], tally.answered_by_kind["seed"]) == (2, 1)
    assert tally.unanswered_kinds(["seed", "n"]) == ["n"]


def test_a_difference_says_where_and_how_far() -> None:
    tally = Tally()
    wrong = Replay(1, 0, 9, Verdict.DIFFERENT, 4, 5, 6, 0.25)
    tally.add_replays(REQUEST, right_answer(), [EQUAL, wrong])
    assert tally.replays == {"equal": 1, "different": 1}
    assert tally.failures[0].what == (
        "differs from its plain re-run: choice 0 at output 4: 6 instead of 5, scores 0.25 apart"
    )
