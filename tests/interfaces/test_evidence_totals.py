"""What the evidence adds up to is what clients were told and what Prometheus says, exactly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from speculation.v1 import verifier_pb2 as pb

from gateway.evidence.settings import EvidenceSettings
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.interfaces import test_spec_metrics as told_by_responses
from tests.interfaces.stack import K
from tests.interfaces.test_spec_metrics import BASE, KINDS, SUMS, Scene, ask, closed
from tests.verifier_service.serving import until

# Its requests are told twice: by their responses, and by what they left in the accounts.
scene = told_by_responses.scene

LISTS = ("acceptance_histogram", "accepted_per_position", "proposed_per_position")


@pytest.fixture(params=["file", "memory"], autouse=True)
def evidence(
    request: pytest.FixtureRequest,
    socket_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """The stack of these tests with a gateway that receives what its verifier traces."""
    address = f"unix:{socket_dir}/otlp.sock"
    database = str(tmp_path / "e.duckdb") if request.param == "file" else "memory"
    options = {
        **told_by_responses.EVERYTHING["gateway_options"],
        "evidence": EvidenceSettings(listen=address, database=database),
    }
    trace = TraceSettings(address, TraceLevel.DETAILED)
    monkeypatch.setattr(
        told_by_responses, "EVERYTHING", {"gateway_options": options, "trace": trace}
    )
    yield


async def answer(scene: Scene, path: str) -> Any:
    response = await scene.running.http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def prometheus(scene: Scene) -> dict[tuple[str, ...], float]:
    text = (await scene.running.http.get("/metrics")).text
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k not in BASE)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def added(rows: list[Any], name: str) -> list[int]:
    """The elementwise sum of a list that each row has, without the zeros at its end."""
    longest = max(len(row[name]) for row in rows)
    sums = [sum(([*row[name], *[0] * longest])[i] for row in rows) for i in range(longest)]
    while sums and sums[-1] == 0:
        sums.pop()
    return sums


async def test_evidence_responses_and_prometheus_say_the_same(scene: Scene) -> None:
    """Eight clients at once, with stops, predictions, several choices, and some that leave."""

    async def client(number: int) -> None:
        rng = random.Random(number)
        for step, kind in enumerate(rng.sample(KINDS, len(KINDS))):
            await ask(scene, str(number * 20 + step), kind, rng)

    await asyncio.gather(*map(client, range(8)))
    await until(lambda: all(map(closed, scene.accounts.values())))
    count = len(scene.accounts)
    async with asyncio.timeout(20):
        while (await scene.running.verifier.GetInfo(pb.GetInfoRequest())).running_requests:
            await asyncio.sleep(0.002)
        while (body := await answer(scene, "/v1/acceptance"))["totals"]["requests"] < count:
            await asyncio.sleep(0.05)
    totals, told = body["totals"], scene.told
    assert body["dropped"] == {}
    assert totals["requests"] == count
    assert totals["completion_tokens"] == told.sums["tokens"]
    assert {name: totals[name] for name in SUMS} == {name: told.sums[name] for name in SUMS}
    assert added([totals], "acceptance_histogram") == added(
        [{"acceptance_histogram": told.histogram}], "acceptance_histogram"
    )

    samples = await prometheus(scene)
    prefix = "vllm:spec_decode_num"
    assert totals["num_spec_steps"] == samples[f"{prefix}_drafts_total",] > 100
    assert totals["num_draft_tokens"] == samples[f"{prefix}_draft_tokens_total",]
    assert totals["num_accepted_draft_tokens"] == samples[f"{prefix}_accepted_tokens_total",]
    assert totals["completion_tokens"] == samples["vllm:generation_tokens_total",]
    for position in range(K):
        accepted = samples[f"{prefix}_accepted_tokens_per_pos_total", str(position)]
        assert totals["accepted_per_position"][position] == accepted
    ended = [v for key, v in samples.items() if key[0] == "outrider:verifier_requests_total"]
    assert sum(ended) == count

    by_proposer = await answer(scene, "/v1/acceptance?group_by=proposer")
    named = {row["group"]["proposer"]: row for row in by_proposer["data"]}
    assert {name for name in named if name} == {"prediction", "toy"}
    for name in ("prediction", "toy"):
        for field, sample in (
            ("num_spec_steps", "drafts"),
            ("num_draft_tokens", "draft_tokens"),
            ("num_accepted_draft_tokens", "accepted_tokens"),
        ):
            assert named[name][field] == samples[f"outrider:proposer_{sample}_total", name] > 0

    requests = (await answer(scene, "/v1/requests?limit=1000"))["data"]
    assert len(requests) == count
    assert sum(one["completion_tokens"] for one in requests) == totals["completion_tokens"]
    for name in SUMS:
        assert sum(one[name] for one in requests) == totals[name]
    for name in LISTS:
        assert added(requests, name) == added([totals], name)
    left = [one for one in requests if one["finish_reason"] == "abort"]
    assert len(left) == told.endings["left"] == 16

    for one in rng_sample(requests):
        rounds = (await answer(scene, f"/v1/requests/{one['span_id']}"))["rounds"]
        steps = [round_ for round_ in rounds if round_["verified"]]
        assert len(rounds) == one["num_rounds"]
        assert len(steps) == one["num_spec_steps"]
        assert sum(round_["verified"] for round_ in steps) == one["num_draft_tokens"]
        assert sum(round_["accepted"] for round_ in steps) == one["num_accepted_draft_tokens"]
        assert sum(round_["emitted"] for round_ in rounds) == one["completion_tokens"]


def rng_sample(requests: list[Any]) -> list[Any]:
    return random.Random(0).sample(requests, 10)
