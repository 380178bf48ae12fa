"""The advisor's check: its arithmetic, its page, and what it sends and records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from benchmarks import advise_check
from benchmarks.advise_check import answer, choose_prompts, compare, parse
from benchmarks.advise_report import Comparison, page, within
from benchmarks.prompts import RawPrompt, code_edits
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer

MEASURED = {"steps": 10, "drafted": 40, "accepted": 20, "histogram": [2, 2, 2, 2, 2]}


def comparison(**changes: Any) -> Comparison:
    base = Comparison("ngram", 0.0, 4, 2, 99, MEASURED, MEASURED, MEASURED)
    return replace(base, **changes)


def off(**changes: int) -> dict[str, Any]:
    return {**MEASURED, **changes}


def test_the_error_is_the_larger_of_length_and_rate() -> None:
    assert comparison().error == 0.0
    # Rate 20/40 -> 20/50; length unchanged.
    assert comparison(predicted=off(drafted=50)).error == pytest.approx(0.2)
    # Length 3 -> 3.1, rate 0.5 -> 0.525.
    assert comparison(predicted=off(accepted=21)).error == pytest.approx(0.05)
    assert comparison(predicted_from_text=off(steps=20)).text_error == pytest.approx(1 / 3)


def test_only_close_predictions_of_something_drafted_pass() -> None:
    assert within(comparison())
    assert not within(comparison(predicted=off(drafted=50)))
    assert not within(comparison(predicted_from_text=off(drafted=50)))
    nothing = off(steps=0, drafted=0, accepted=0)
    assert not within(comparison(measured=nothing, predicted=nothing, predicted_from_text=nothing))


def test_the_page_says_what_is_equal_and_what_only_close() -> None:
    report = {
        "machine": {"cpu": "x"},
        "versions": {"outrider": "1"},
        "command": "python -m benchmarks.advise_check",
        "model": "m",
        "prompts": {"edits": ["a", "b"]},
    }
    text = page(report, [comparison(), comparison(predicted=off(drafted=41))])
    assert "**2 of 2 within 5%**" in text and "in 1 of 2 every count is equal" in text
    assert "Prompts: edits: a, b" in text
    cells = "| 3.000, 50.0%, 20 of 40 in 10 | 3.000, 48.8%, 20 of 41 in 10 | 2.44% |"
    assert f"| ngram | 0 {cells}" in text


def test_prompts_are_the_first_that_fit() -> None:
    chosen = choose_prompts(["edits"], Path("unused"), byte_level_tokenizer(), 2, 10_000)
    assert [raw.name for raw, _ in chosen] == [raw.name for raw in list(code_edits())[:2]]
    shortest = min(len(ids) for _, ids in chosen)
    with pytest.raises(ValueError, match="edits has 0 prompts of at most"):
        choose_prompts(["edits"], Path("unused"), byte_level_tokenizer(), 1, shortest // 10)


class Stub:
    """A verifier that answers every prompt with the same two messages; `requests` were sent."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []

    def Generate(self, request: pb.GenerateRequest, timeout: float) -> list[pb.GenerateResponse]:
        self.requests.append(request)
        acceptance = types_pb2.AcceptanceStats(
            num_spec_tokens=2,
            num_spec_steps=1,
            num_draft_tokens=2,
            num_accepted_draft_tokens=1,
            acceptance_histogram=[0, 1, 0],
        )
        finished = pb.Finished(
            stop_token_id=1, acceptance=acceptance, cached_prompt_tokens=3, prompt_tokens=4
        )
        return [
            pb.GenerateResponse(delta=pb.Delta(text="yes", token_ids=[5, 6])),
            pb.GenerateResponse(delta=pb.Delta(text="!", token_ids=[7, 1])),
            pb.GenerateResponse(finished=finished),
        ]


def options(*more: str) -> Any:
    return parse(["--data", "unused", "--out", "unused", "--tokens", "9", "-k", "2", *more])


def test_a_request_names_its_proposer_and_keeps_to_its_own_salt() -> None:
    stub = Stub()
    line, _ = answer(stub, [1, 2, 3, 4], "suffix", options(), 0.0)
    (request,) = stub.requests
    assert request.speculation.proposer == "suffix" and request.sampling.temperature == 0.0
    assert list(request.token_ids.ids) == [1, 2, 3, 4] and request.cache_salt == "suffix 0"
    assert line["output_token_ids"] == [5, 6, 7, 1] and line["output"] == "yes!"
    assert (line["finish_reason"], line["max_tokens"]) == ("stop", 9)
    assert line["cached_prompt_tokens"] == 3


def test_all_prompts_are_summed_and_written_as_ids_and_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[dict[str, Any]]] = {}

    def predict(traffic: Path, method: str, k: int, model: str) -> dict[str, Any]:
        seen[traffic.name] = [json.loads(line) for line in traffic.read_text().splitlines()]
        return {
            "num_spec_steps": 2,
            "num_draft_tokens": 4,
            "num_accepted_draft_tokens": 2,
            "acceptance_histogram": [0, 2, 0],
        }

    monkeypatch.setattr(advise_check, "predict", predict)
    prompts = [(RawPrompt("a", "hi", chat=True), [1, 2]), (RawPrompt("b", "x = ", chat=False), [3])]
    found = compare(Stub(), prompts, "ngram", 0.0, options(), tmp_path)
    assert found.measured == found.predicted
    assert found.measured == {"steps": 2, "drafted": 4, "accepted": 2, "histogram": [0, 2, 0]}
    assert (found.requests, found.output_tokens) == (2, 8)
    assert [line["prompt_token_ids"] for line in seen["ids.jsonl"]] == [[1, 2], [3]]
    assert seen["text.jsonl"][0]["messages"] == [{"role": "user", "content": "hi"}]
    assert seen["text.jsonl"][1]["prompt"] == "x = "
    assert all("output_token_ids" not in line for line in seen["text.jsonl"])
    assert all("output" not in line for line in seen["ids.jsonl"])


def test_the_prediction_is_the_commands_own(tmp_path: Path) -> None:
    traffic = tmp_path / "ids.jsonl"
    line = {"prompt_token_ids": [1, 2, 3] * 3, "output_token_ids": [1, 2, 3] * 3}
    traffic.write_text(json.dumps(line))
    found = advise_check.predict(traffic, "ngram", 4, str(tmp_path))
    # Eight tokens behind the first: a round of five, and one of the three that are left.
    assert found["num_spec_steps"] == 2 and found["num_accepted_draft_tokens"] == 7
    assert found["num_spec_tokens"] == 4
