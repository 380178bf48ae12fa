"""What responses tell of their speculation adds up to `/metrics`, whatever ended them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from speculation.v1 import verifier_pb2 as pb

from gateway.settings import SpecDecodeMetrics
from tests.interfaces.stack import KNOWN, MODEL, K, Stack, stack
from tests.verifier_service.serving import until
from verifier_service import generations
from verifier_service.accounting import Account
from verifier_service.answer import Answer, AnswerOptions

SUMS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
BASE = ("model_name", "engine")
# Requests with such a seed are held until their client has left.
HELD = range(9000, 9999)
EVERYTHING = {"gateway_options": {"per_request_spec_decode_metrics": SpecDecodeMetrics.DETAILED}}


@dataclass
class Told:
    """Sums over what clients were told, and over what those that left had been given."""

    sums: Counter[str] = field(default_factory=Counter)
    histogram: list[int] = field(default_factory=lambda: [0] * (K + 1))
    endings: Counter[str] = field(default_factory=Counter)

    def add(self, body: Any, usage: Any) -> None:
        figures = body.model_extra["metrics"]["speculative_decoding"]
        self.sums.update({name: figures[name] for name in SUMS})
        self.sums["tokens"] += usage.completion_tokens
        self._add_histogram(figures["acceptance_histogram"])
        details = usage.completion_tokens_details
        assert details.accepted_prediction_tokens == figures["num_accepted_draft_tokens"]
        drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
        assert drafted == figures["num_draft_tokens"]
        self._check(body, figures)

    def add_account(self, account: Account) -> None:
        acceptance = account.acceptance
        self.sums.update({name: getattr(acceptance, name) for name in SUMS})
        self.sums["tokens"] += account.completion_tokens
        self._add_histogram(acceptance.histogram)

    def _add_histogram(self, histogram: list[int]) -> None:
        self.histogram = [a + b for a, b in zip(self.histogram, histogram, strict=True)]

    def _check(self, body: Any, figures: dict[str, Any]) -> None:
        """The figures agree with each other, and so do those of the choices with their sum."""
        histogram = figures["acceptance_histogram"]
        accepted = figures["num_accepted_draft_tokens"]
        assert sum(histogram) == figures["num_spec_steps"]
        assert sum(j * steps for j, steps in enumerate(histogram)) == accepted
        per_step = figures.get("per_step_accepted") or []
        assert [per_step.count(j) for j in range(K + 1)] == histogram
        assert sum(figures.get("per_step_drafted") or []) == figures["num_draft_tokens"]
        choices = body.model_extra["metrics"].get("choices")
        if choices is not None:
            assert [choice["index"] for choice in choices] == list(range(len(choices)))
            for name in SUMS:
                told = [choice["speculative_decoding"][name] for choice in choices]
                assert sum(told) == figures[name]


@dataclass
class Scene:
    """A running stack whose accounts are known, and whose requests can be held."""

    running: Stack
    accounts: dict[str, Account]
    releases: dict[int, threading.Event]
    told: Told = field(default_factory=Told)

    def of(self, request_id: str) -> list[Account]:
        return [a for name, a in self.accounts.items() if name.split("+")[0] == request_id]


@pytest.fixture
async def scene(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    accounts: dict[str, Account] = {}
    releases = {seed: threading.Event() for seed in HELD}

    class Recorded(Answer):
        def __init__(self, options: AnswerOptions, account: Account, **how: Any) -> None:
            super().__init__(options, account, **how)
            accounts[options.request_id.replace("-", "+")] = account

    monkeypatch.setattr(generations, "Answer", Recorded)
    async with stack(socket_dir, **EVERYTHING) as running:
        run = running.engine.run

        def held(chunks: list[Any], **how: Any) -> Any:
            for chunk in chunks:
                if chunk.sampling.seed in releases and chunk.start > 24:
                    assert releases[chunk.sampling.seed].wait(30)
            return run(chunks, **how)

        monkeypatch.setattr(running.engine, "run", held)
        yield Scene(running, accounts, releases)


async def ask(scene: Scene, request_id: str, kind: str, rng: random.Random) -> None:
    """One request of a kind, and what it was told."""
    client = scene.running.client
    options: dict[str, Any] = {
        "model": MODEL,
        "prompt": rng.choice(["the cat", "a dog and", "12, 34"]),
        "max_tokens": rng.randint(1, 40),
        "temperature": rng.choice([0.0, 0.8]),
        "seed": rng.randrange(1000),
        "extra_body": {"request_id": request_id},
    }
    if kind == "stop":
        options.update(stop=["STOP", "t on", "og a", "12"], max_tokens=60)
    elif kind == "eos":
        ids = scene.running.ids(" t") + scene.running.ids("d")
        options["extra_body"].update(stop_token_ids=ids)
        options["max_tokens"] = 60
    elif kind == "several":
        options.update(prompt=["the cat", "a"], n=2, temperature=0.8)
    elif kind == "predicted":
        options["extra_body"].update(prediction={"type": "content", "content": KNOWN})
    elif kind == "plain":
        options["extra_body"].update(speculative_decoding={"enabled": False})
    if kind.startswith("leave"):
        await leave(scene, request_id, kind, options, HELD[int(request_id)])
        return
    if rng.random() < 0.5:
        answer = await client.completions.create(**options)
        scene.told.add(answer, answer.usage)
        return
    stream = await client.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    last = [chunk async for chunk in stream][-1]
    scene.told.add(last, last.usage)


async def leave(
    scene: Scene, request_id: str, kind: str, options: dict[str, Any], seed: int
) -> None:
    """Go away in the middle of an answer; the engine waits for that."""
    client = scene.running.client
    options.update(seed=seed, max_tokens=150, temperature=0.8)
    options["extra_body"].update(ignore_eos=True)
    try:
        if kind == "leave a stream":
            stream = await client.completions.create(**options, stream=True)
            await anext(aiter(stream))
            await stream.close()
        else:
            asking = asyncio.create_task(client.completions.create(**options))
            await until(lambda: any(a.completion_tokens for a in scene.of(request_id)))
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        (account,) = scene.of(request_id)
        await until(lambda: closed(account))
    finally:
        scene.releases[seed].set()
    scene.told.add_account(account)
    scene.told.endings["left"] += 1


def closed(account: Account) -> bool:
    return bool(account.outcome)


KINDS = (
    *("plain", "stop", "eos", "several", "predicted", "length"),
    *("leave a stream", "leave a whole answer"),
)


@pytest.mark.parametrize("seed", range(2))
async def test_eight_clients_at_once_add_up(scene: Scene, seed: int) -> None:
    async def client(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        for step, kind in enumerate(rng.sample(KINDS, len(KINDS))):
            await ask(scene, str(number * 20 + step), kind, rng)

    await asyncio.gather(*map(client, range(8)))
    await until(lambda: all(map(closed, scene.accounts.values())))
    async with asyncio.timeout(20):
        while (await scene.running.verifier.GetInfo(pb.GetInfoRequest())).running_requests:
            await asyncio.sleep(0.002)
    text = (await scene.running.http.get("/metrics")).text
    samples = {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k not in BASE)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    told = scene.told
    prefix = "vllm:spec_decode_num"
    assert samples[f"{prefix}_drafts_total",] == told.sums["num_spec_steps"] > 100
    assert samples[f"{prefix}_draft_tokens_total",] == told.sums["num_draft_tokens"]
    accepted = told.sums["num_accepted_draft_tokens"]
    assert samples[f"{prefix}_accepted_tokens_total",] == accepted
    assert samples["vllm:generation_tokens_total",] == told.sums["tokens"]
    by_accepted = "outrider:spec_decode_num_drafts_by_accepted_total"
    assert [samples[by_accepted, str(j)] for j in range(K + 1)] == told.histogram
    per_position = f"{prefix}_accepted_tokens_per_pos_total"
    # A step that accepted j drafts accepted one at each position before j.
    assert [samples[per_position, str(p)] for p in range(K)] == [
        sum(told.histogram[p + 1 :]) for p in range(K)
    ]
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        parts = [samples[f"outrider:proposer_{name}_total", p] for p in ("prediction", "toy")]
        assert sum(parts) == samples[f"{prefix}_{name}_total",]
        assert min(parts) > 0
    assert samples["outrider:verifier_requests_total", "abort"] == told.endings["left"] == 16
    assert samples["outrider:verifier_requests_total", "stop"] > 0
    waits = samples["outrider:draft_wait_seconds_count",]
    steps = {s: samples["outrider:verify_seconds_count", s] for s in ("plain", "drafts", "prefill")}
    assert 0 < waits <= sum(steps.values()) == len(scene.running.engine.steps)
    assert steps["drafts"] > 0 < steps["prefill"]
