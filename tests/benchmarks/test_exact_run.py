from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.exact_cases import Case, Generated, Job, jobs, matrix
from benchmarks.exact_report import ExactReport
from benchmarks.exact_run import CaseResult, Check, Store, describe
from tests.benchmarks.test_divergence import TARGET
from tests.benchmarks.test_prompts import Letters

JOBS = (Job("one", (0,), 1), Job("two", (2,), 2))
# Greedy outputs of the table: 0 -> 1 -> 2 -> 0.
RIGHT = {"one": (1, 2, 0), "two": (0, 1, 2)}


class Fake:
    """Answers rightly unless `spoil` says otherwise; counts how often each case was run."""

    def __init__(self, spoil: Callable[[Case, Job], Generated | None] | None = None) -> None:
        self.spoil = spoil
        self.ran: list[Case] = []

    def generate(self, jobs: Sequence[Job], case: Case, max_tokens: int) -> list[Generated]:
        assert max_tokens == 3
        self.ran.append(case)
        return [self._one(case, job) for job in jobs]

    def _one(self, case: Case, job: Job) -> Generated:
        spoiled = self.spoil(case, job) if self.spoil else None
        if spoiled is not None:
            return spoiled
        return Generated(RIGHT[job.name], 2, 2 * case.k, case.k)


def check(generator: Fake, path: Path | None = None, signature: Any = 1) -> Check:
    store = Store(path, {"of": signature})
    return Check(generator, TARGET, JOBS, 3, store, lambda line: None)


CASES = matrix(["ngram", "adversary"], [1, 4], [0.0], [1, 2])


def test_the_matrix_adds_plain_decoding_where_batching_could_show() -> None:
    assert [str(case) for case in CASES] == [
        "ngram K=1 T=0 1 client",
        "ngram K=4 T=0 1 client",
        "adversary K=1 T=0 1 client",
        "adversary K=4 T=0 1 client",
        "none K=0 T=0 2 clients",
        "ngram K=1 T=0 2 clients",
        "ngram K=4 T=0 2 clients",
        "adversary K=1 T=0 2 clients",
        "adversary K=4 T=0 2 clients",
    ]


def test_plain_decoding_runs_once_for_each_temperature() -> None:
    generator = Fake()
    check(generator).run(CASES)
    assert generator.ran == [Case("none", 0, 0.0, 1), *CASES]


def test_all_equal_passes_and_sums_up() -> None:
    results = check(Fake()).run(CASES)
    assert all(result.passed for result in results)
    (one,) = [result for result in results if result.case == Case("ngram", 4, 0.0, 1)]
    assert (one.outputs, one.equal, one.tokens) == (2, 2, 6)
    assert (one.steps, one.drafted, one.accepted) == (4, 16, 8)


def test_a_single_wrong_token_fails_its_case_only() -> None:
    bad = Case("adversary", 4, 0.0, 2)

    def spoil(case: Case, job: Job) -> Generated | None:
        return Generated((0, 1, 3), 1, 4, 0) if (case, job.name) == (bad, "two") else None

    results = check(Fake(spoil)).run(CASES)
    failed = [result for result in results if not result.passed]
    assert [result.case for result in failed] == [bad]
    (found,) = failed[0].failures
    assert (found.job, found.divergence.position, found.divergence.got) == ("two", 2, 3)
    assert failed[0].tokens == 3 + 2
    assert "1 FAILED" in describe(failed[0])


def test_wrong_plain_decoding_fails_even_if_all_cases_repeat_the_error() -> None:
    results = check(Fake(lambda case, job: Generated((3, 3, 3), 1, case.k, 0))).run(CASES)
    assert [result.case for result in results if not result.passed] == [Case("none", 0, 0.0, 1)]


def test_a_case_without_drafts_proves_nothing() -> None:
    results = check(Fake(lambda case, job: Generated(RIGHT[job.name]))).run(CASES)
    assert {result.case.proposers for result in results if not result.passed} == {
        "ngram",
        "adversary",
    }


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state" / "exact.jsonl"
    first = check(Fake(), path).run(CASES[:3])
    path.write_text(path.read_text() + '{"case torn')
    generator = Fake()
    results = check(generator, path).run(CASES)
    assert generator.ran == CASES[3:]
    assert results[:4] == first
    again = Fake()
    assert check(again, path).run(CASES) == results
    assert again.ran == []


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "exact.jsonl"
    check(Fake(), path).run(CASES[:1])
    with pytest.raises(ValueError, match="belongs to other settings"):
        check(Fake(), path, signature=2)


def test_results_survive_json() -> None:
    bad = check(Fake(lambda case, job: Generated((0, 1, 3), 1, 4, 0))).run(CASES[:1])
    for result in bad:
        assert CaseResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_report_lists_every_divergence_and_its_verdict() -> None:
    def spoil(case: Case, job: Job) -> Generated | None:
        return Generated((0, 1, 3), 1, 4, 0) if case.k == 4 and job.name == "two" else None

    results = check(Fake(spoil)).run(CASES[:2])
    report = ExactReport("cmd", "in a test", {}, {}, {}, results)
    page = report.to_markdown()
    assert not report.passed
    assert report.to_json()["passed"] is False
    assert "**FAILED.** 6 outputs" in page
    assert "| ngram K=4 T=0 1 client | two | 2 | 2 | 3 | 9.00e+00 | FAILURE |" in page


def test_a_passed_report_says_so() -> None:
    page = ExactReport("cmd", "in a test", {}, {}, {}, check(Fake()).run(CASES)).to_markdown()
    assert "**Passed.** 20 outputs, 60 tokens compared: 20 outputs equal" in page
    assert "None." in page


def test_there_are_forty_jobs_with_distinct_signed_64_bit_seeds() -> None:
    found = jobs(Letters(), 40)
    assert len({job.name for job in found}) == len({job.seed for job in found}) == 40
    assert all(-(2**63) <= job.seed < 2**63 for job in found)
    assert {job.name.split("-")[0] for job in found[:4]} == {"exact", "edit"}
    assert jobs(Letters(), 4) == found[:4]
    with pytest.raises(ValueError, match="41 prompts were asked for; there are 40"):
        jobs(Letters(), 41)
