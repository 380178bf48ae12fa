"""The order of things: what is read, skipped, counted and asked of others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.advise.costs import StepCost
from outrider.advise.methods import ngram, suffix
from outrider.advise.report import as_json, speculative_config
from outrider.advise.run import Options, Outcome, run
from outrider.errors import InputError
from proposer_service.proposers.suffix_options import SuffixOptions
from tests.outrider.advise.serving import proposer_at

REPEATING = {"prompt_token_ids": [1, 2, 3, 4] * 3, "output_token_ids": [1, 2, 3, 4] * 5}


def options(path: Path, **changes: Any) -> Options:
    base = Options(
        traffic=path,
        methods=(ngram(2, 3), suffix(SuffixOptions())),
        ks=(2, 4),
        sequences=(1, 8),
        step_cost=StepCost("given", row_cost=0.01),
    )
    return replace(base, **changes)


def write(path: Path, *lines: object) -> Path:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    path.write_text(text)
    return path


def go(path: Path, **changes: Any) -> Outcome:
    return run(options(path, **changes), lambda stage, done, total: None)


def test_traffic_that_repeats_is_worth_speculating_on(tmp_path: Path) -> None:
    outcome = go(write(tmp_path / "t.jsonl", REPEATING, REPEATING))
    assert outcome.advice.worth_it
    counts = outcome.counts
    assert (counts.requests, counts.prompt_tokens, counts.output_tokens) == (2, 24, 40)
    assert [r.name for r in outcome.replayed] == ["ngram 2-3", "suffix"]
    # 19 decoded tokens of each, 4 accepted a round and one more.
    best = max(choice.tally.tokens_per_round for choice in outcome.choices)
    assert best == pytest.approx(19 / 4)


def test_the_report_holds_every_count(tmp_path: Path) -> None:
    outcome = go(write(tmp_path / "t.jsonl", REPEATING))
    found = json.loads(json.dumps(as_json(outcome)))
    result = found["methods"][0]["results"][1]
    tally = outcome.replayed[0].tallies[1]
    assert result["num_speculative_tokens"] == 4
    assert result["speculative_decoding"]["num_spec_steps"] == tally.acceptance.num_spec_steps
    assert result["speculative_decoding"]["acceptance_histogram"] == tally.acceptance.histogram
    assert sum(result["steps_by_drafted"]) == result["decode_steps"] == tally.rounds
    assert result["decoded_tokens"] == 19
    assert set(result["speedup"]) == {"1", "8"}
    assert found["advice"]["speculative_config"]["num_speculative_tokens"] == 4


def test_the_config_named_is_the_one_replayed(tmp_path: Path) -> None:
    outcome = go(write(tmp_path / "t.jsonl", REPEATING), methods=(ngram(2, 5),), ks=(4,))
    assert speculative_config(outcome.advice.recommended) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    own = suffix(SuffixOptions(max_spec_factor=2.0))
    outcome = go(write(tmp_path / "t.jsonl", REPEATING), methods=(own,), ks=(4,))
    assert speculative_config(outcome.advice.recommended) == {
        "method": "suffix",
        "num_speculative_tokens": 4,
        "suffix_decoding_max_spec_factor": 2.0,
    }


def test_a_bad_line_ends_the_command_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", REPEATING, {"prompt": 3})
    with pytest.raises(InputError, match=r"t\.jsonl line 2: prompt: 3: .*--skip-bad-lines"):
        go(path)


def test_skipped_lines_are_counted_and_the_first_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", "{", REPEATING, {"prompt": [1]}, {"prompt": 3})
    outcome = go(path, skip_bad_lines=True)
    assert (outcome.counts.requests, outcome.counts.skipped) == (1, 3)
    assert outcome.counts.first_skipped.startswith("line 1: not JSON")
    assert as_json(outcome)["traffic"]["skipped_lines"] == 3


def test_a_file_without_a_request_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no request"):
        go(write(tmp_path / "t.jsonl"))
    with pytest.raises(InputError, match="1 bad lines were skipped, first: line 1: not JSON"):
        go(write(tmp_path / "t.jsonl", "{"), skip_bad_lines=True)


def test_a_limit_takes_the_first_requests(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", REPEATING, REPEATING, "{ not reached")
    assert go(path, limit=2).counts.requests == 2


def test_progress_is_told_to_its_end(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = write(tmp_path / "t.jsonl", REPEATING, REPEATING)
    run(options(path), lambda *what: told.append(what))
    assert [done for stage, done, _ in told if stage == "read"] == [1, 2]
    # One pass for ngram, one for each K of suffix.
    assert [what for what in told if what[0] == "replay"] == [
        ("replay", done, 6) for done in range(1, 7)
    ]


def test_without_a_cost_one_is_assumed_and_said(tmp_path: Path) -> None:
    outcome = go(write(tmp_path / "t.jsonl", REPEATING), step_cost=None)
    assert outcome.cost.assumed and as_json(outcome)["step_cost"]["source"] == "assumed"
    assert "assumed" in outcome.advice.sentence


def test_live_proposers_need_to_know_whose_ids_these_are(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", REPEATING)
    with pytest.raises(InputError, match="--live: give --proposer ADDRESS"):
        go(path, live=True)
    with pytest.raises(InputError, match="give --model or --url"):
        go(path, live=True, proposers=("unix:/tmp/none.sock",))


def test_a_live_proposer_is_reported_beside_the_others(tmp_path: Path, socket_dir: Path) -> None:
    from benchmarks.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "model")
    path = write(tmp_path / "t.jsonl", REPEATING, REPEATING)
    with proposer_at(
        socket_dir, method="ngram", prompt_lookup_min=2, prompt_lookup_max=3
    ) as address:
        outcome = go(path, live=True, proposers=(address,), model=model)
    own, live = outcome.replayed[0], outcome.replayed[-1]
    assert live.name == "ngram (live)" and live.address == address
    assert [t.acceptance for t in live.tallies] == [t.acceptance for t in own.tallies]
    assert as_json(outcome)["methods"][-1]["live"] is True
