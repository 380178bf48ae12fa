"""A draft model's process: loading, what it says of itself, its streams and its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from speculation.v1 import proposer_pb2, types_pb2
from transformers import AutoTokenizer

from outrider import garbage
from outrider.errors import InputError, OperationError
from outrider.vocabulary import fingerprint
from proposer_service import server
from proposer_service.draft_model import loading
from proposer_service.draft_model.proposer import Budgets
from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.server import RunningServer, start
from proposer_service.settings import ProposerSettings
from tests.proposer_service.verifier import (
    WAIT_S,
    Stream,
    commit,
    connected,
    opening,
    propose,
    step,
)
from verifier_service.engines.torch_engine import TorchEngine

SERVING = health_pb2.HealthCheckResponse.SERVING
COUPLED = types_pb2.REJECTION_RULE_COUPLED
TEXT = [30, 41, 52, 63]


def settings_of(folder: Path, socket_dir: Path, **draft_model: Any) -> ProposerSettings:
    own: dict[str, Any] = {"model": str(folder), "device": "cpu", "kv_cache_memory_bytes": 1 << 20}
    return ProposerSettings(
        listen=f"unix:{socket_dir}/d.sock",
        method="draft_model",
        draft_model=DraftModelSettings(**own | draft_model),
        max_draft_tokens=8,
        max_sequences=8,
        drain_seconds=60,
    )


def told(folder: Path) -> dict[str, Any]:
    """What the hello of a target with this model's vocabulary says of it."""
    tokens = AutoTokenizer.from_pretrained(folder).get_vocab()
    return {
        "vocabulary_fingerprint": fingerprint(tokens),
        "vocabulary_size": len(tokens),
        "rejection_rule": COUPLED,
    }


async def health_of(address: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)).status


async def heard_ahead(stream: Stream, sequence_id: int) -> proposer_pb2.OutcomeBlock:
    """The next block that is pushed for a sequence."""
    while True:
        for outcome in (await stream.hear()).lookahead.blocks:
            if outcome.block.sequence_id == sequence_id:
                return outcome


async def test_it_serves_steps_and_prepares_the_next(tiny: Path, socket_dir: Path) -> None:
    running = await start(settings_of(tiny, socket_dir))
    try:
        assert await health_of(running.address) == SERVING
        async with propose(running.address) as stream:
            capabilities = await stream.greet(**told(tiny))
            assert capabilities.method == capabilities.name == "draft_model"
            assert capabilities.vocabulary_size == told(tiny)["vocabulary_size"]
            assert capabilities.vocabulary_fingerprint == told(tiny)["vocabulary_fingerprint"]
            assert capabilities.context_limit == 256
            assert capabilities.options["quantization"] == '"none"'
            drafts = await stream.ask(step(1, opening(1, TEXT, k=4), opening(2, TEXT[1:], k=2)))
            assert [len(block.token_ids) for block in drafts.blocks] == [4, 2]
            ahead = await heard_ahead(stream, 1)
            assert list(ahead.outcome_token_ids[:-1]) == list(drafts.blocks[0].token_ids)
            after = commit(1, len(TEXT), list(ahead.outcome_token_ids), k=4)
            (block,) = (await stream.ask(step(2, after))).blocks
            assert list(block.token_ids) == list(ahead.block.token_ids)
    finally:
        await running.stop()


async def test_on_the_targets_own_card_nothing_is_prepared_ahead(
    tiny: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "device_uuid", lambda device: "GPU-1")
    running = await start(settings_of(tiny, socket_dir))
    try:
        for number, (card, lookahead) in enumerate([("GPU-1", False), ("GPU-2", True), ("", True)]):
            async with propose(running.address) as stream:
                name = f"verifier-{number}"
                hello = told(tiny) | {"verifier_instance_id": name, "device_uuid": card}
                assert (await stream.greet(**hello)).lookahead is lookahead
                drafts = await stream.ask(step(1, opening(1, TEXT, k=4)))
                assert drafts.blocks
                after = commit(1, len(TEXT), list(drafts.blocks[0].token_ids[:1]), k=2)
                await stream.say(step(2, after))
                kinds = [(await stream.hear()).WhichOneof("message")]
                while kinds[-1] != "drafts":
                    kinds.append((await stream.hear()).WhichOneof("message"))
                assert lookahead or kinds == ["drafts"]
    finally:
        await running.stop()


async def test_a_long_prompt_is_read_while_no_step_comes(
    tiny: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_CPU_BUDGETS", Budgets(answer=32, piece=16))
    running = await start(settings_of(tiny, socket_dir))
    try:
        async with propose(running.address) as stream:
            await stream.greet(**told(tiny), no_lookahead=True)
            text = TEXT * 30
            drafts = await stream.ask(step(1, opening(1, text, k=3), opening(2, TEXT, k=3)))
            assert [block.sequence_id for block in drafts.blocks] == [2]
            # Steps in a row cannot keep it from being read: each leaves time for a piece.
            for number in range(2, 30):
                drafts = await stream.ask(step(number, commit(1, len(text), [], k=3)))
                assert await health_of(running.address)
                if drafts.blocks:
                    return
            raise AssertionError("the prompt was never read")
    finally:
        await running.stop()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocabulary_fingerprint": "0123456789abcdef"}, "both sides must use one tokenizer"),
        ({"rejection_rule": types_pb2.REJECTION_RULE_STANDARD}, "'probabilistic' gives"),
        ({"rejection_rule": types_pb2.REJECTION_RULE_UNSPECIFIED}, "'probabilistic' gives"),
    ],
)
async def test_a_verifier_that_does_not_fit_is_told_why(
    tiny: Path, socket_dir: Path, changes: dict[str, Any], words: str
) -> None:
    running = await start(settings_of(tiny, socket_dir, draft_sample_method="probabilistic"))
    try:
        async with propose(running.address) as stream:
            forms = (await stream.greet(**told(tiny))).q_forms
            assert list(forms) == [types_pb2.Q_FORM_ONE_HOT, types_pb2.Q_FORM_SPARSE]
        async with propose(running.address) as stream:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.greet(**told(tiny) | changes)
            assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert words in (error.value.details() or "")
    finally:
        await running.stop()


async def test_until_the_model_is_loaded_nobody_is_served(
    tiny: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, wanted, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    load = loading.load_draft_model

    def waiting(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(wanted.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(WAIT_S)
        return load(*arguments)

    monkeypatch.setattr(loading, "load_draft_model", waiting)
    settings = settings_of(tiny, socket_dir)
    starting = asyncio.ensure_future(start(settings))
    await asyncio.wait_for(wanted.wait(), WAIT_S)
    try:
        assert await health_of(settings.listen) == health_pb2.HealthCheckResponse.NOT_SERVING
        async with propose(settings.listen) as stream, connected(settings.listen) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.greet(**told(tiny))
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest())
            assert error.value.details() == "the draft model is loading"
    finally:
        go_on.set()
    running: RunningServer = await asyncio.wait_for(starting, WAIT_S)
    assert await health_of(running.address) == SERVING
    await running.stop()


@pytest.mark.parametrize(
    ("draft_model", "words"),
    [
        ({"model": "no-such-model"}, "draft model: there is no folder 'no-such-model'"),
        ({"max_model_len": 512}, "512 is not allowed; this model takes 2 to 256"),
        ({"quantization": "int3"}, "draft model: quantization 'int3': allowed are"),
        ({"dtype": "float8"}, "draft model: dtype 'float8': allowed are"),
        ({"device": "toaster"}, "draft model: device 'toaster'"),
        ({"revision": "main"}, "no revision 'main'"),
    ],
)
async def test_what_cannot_be_loaded_is_said_in_a_line(
    tiny: Path, socket_dir: Path, draft_model: dict[str, Any], words: str
) -> None:
    settings = settings_of(tiny, socket_dir, **draft_model)
    with pytest.raises(InputError) as error:
        await start(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (socket_dir / "d.sock").exists()


_RUN = """
import sys, threading, types
from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.server import run
from proposer_service.settings import ProposerSettings
if sys.argv[3] == "never":
    loading = types.SimpleNamespace(load_draft_model=lambda *_: threading.Event().wait())
    sys.modules["proposer_service.draft_model.loading"] = loading
run(ProposerSettings(
    listen=f"unix:{sys.argv[2]}/d.sock",
    method="draft_model",
    draft_model=DraftModelSettings(sys.argv[1], "cpu", kv_cache_memory_bytes=1 << 20),
    drain_seconds=60,
))
"""


async def started(tiny: Path, socket_dir: Path, words: str, loads: str) -> Any:
    arguments = (sys.executable, "-c", _RUN, str(tiny), str(socket_dir), loads)
    process = await asyncio.create_subprocess_exec(*arguments, stderr=subprocess.PIPE)
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while words not in (line := (await process.stderr.readline()).decode()):
            assert line, "the process ended"
    return process


async def test_a_signal_drains_it(tiny: Path, socket_dir: Path) -> None:
    process = await started(tiny, socket_dir, "proposer ready", "soon")
    async with propose(f"unix:{socket_dir}/d.sock") as stream:
        await stream.greet(**told(tiny))
        await stream.ask(step(1, opening(1, TEXT, k=4)))
        process.send_signal(signal.SIGTERM)
        code, detail = await stream.status()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in detail
    assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
    assert not (socket_dir / "d.sock").exists()


async def test_a_signal_ends_it_while_it_loads(tiny: Path, socket_dir: Path) -> None:
    process = await started(tiny, socket_dir, "proposer loading", "never")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
    assert not (socket_dir / "d.sock").exists()


async def test_a_process_whose_engine_died_ends(
    tiny: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("an illegal memory access")

    # What a process does to itself is not to be done to this one.
    monkeypatch.setattr(garbage, "settle", lambda: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(TorchEngine, "profile", lambda *_, **__: {1: 0.001})
    monkeypatch.setattr(TorchEngine, "run", broken)
    settings = settings_of(tiny, socket_dir)
    serving = asyncio.ensure_future(server._serve(settings))
    async with asyncio.timeout(WAIT_S):
        while not (socket_dir / "d.sock").exists() or await health_of(settings.listen) != SERVING:
            await asyncio.sleep(0.01)
        async with propose(settings.listen) as stream:
            await stream.greet(**told(tiny))
            for epoch in (1, 2, 3):
                drafts = await stream.ask(step(epoch, opening(1, TEXT, epoch=epoch, k=2)))
                assert [fault.sequence_id for fault in drafts.faults] == [1]
        with pytest.raises(OperationError, match="engine died: RuntimeError: an illegal memory"):
            await serving
    assert not (socket_dir / "d.sock").exists()
