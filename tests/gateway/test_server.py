"""Starting, stopping and what the process needs for it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.server import AddressUnavailableError, start
from gateway.settings import GatewaySettings
from outrider.errors import InputError
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import Answer, FakeVerifier

RUN = """
import sys
from gateway.server import run
from gateway.settings import GatewaySettings
run(GatewaySettings(port=int(sys.argv[1]), verifiers=(sys.argv[2],), drain_timeout_s=20.0))
"""


def test_imports_neither_torch_nor_a_tokenizer() -> None:
    code = (
        "import sys, gateway.server\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'safetensors', 'jinja2'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_taken_port_is_a_typed_error() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(AddressUnavailableError, match=f"port: {port} on 127.0.0.1"):
            await start(GatewaySettings(port=port, verifiers=("unix:x",)))


async def test_unknown_host_is_a_typed_error() -> None:
    with pytest.raises(AddressUnavailableError, match=r"host: 'no\.such\.host\.invalid'"):
        await start(GatewaySettings(host="no.such.host.invalid", verifiers=("unix:x",)))


@pytest.mark.parametrize(
    "options",
    [
        {"verifiers": ()},
        {"port": 70000},
        {"max_body_bytes": 0},
        {"request_timeout_s": -1.0},
        {"drain_timeout_s": -1.0},
        {"max_choices": 0},
    ],
)
def test_settings_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        GatewaySettings(**{"verifiers": ("unix:x",), **options})  # type: ignore[arg-type]


async def test_stop_lets_running_requests_finish(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, drain_timeout_s=20.0)
    verifier.script = lambda request: Answer(wait_after=1)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        running = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
        await asyncio.wait_for(verifier.reached.wait(), 10)
        stopping = asyncio.create_task(gateway.stop())
        await asyncio.sleep(0)
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/tokenize"),
            ("GET", "/health"),
        ):
            refused = await http.request(method, path, json={"prompt": "x"})
            assert refused.status_code == 503, path
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["message"] == "the gateway is shutting down"
        assert (await http.get("/metrics")).status_code == 200
        verifier.release.set()
        response = await running
        assert response.json()["choices"][0]["text"] == "Hello!"
    await stopping


async def test_stop_tells_streams_that_outlast_the_drain(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, drain_timeout_s=0.1)
    verifier.script = lambda request: Answer(hang_after=1)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        body = {"prompt": "x", "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            stopping = asyncio.create_task(gateway.stop())
            received = (await response.aread()).decode()
    await stopping
    last = received.strip().split("\n\n")[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["message"] == "the gateway is shutting down"
    await asyncio.wait_for(verifier.cancelled.wait(), 10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_the_process_cleanly(
    socket_dir: Path, number: signal.Signals, free_port: int
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, str(free_port), f"unix:{socket_dir}/nobody.sock"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            log = ""
            while "gateway listens at" not in log:
                line = await process.stderr.readline()
                assert line, log
                log += line.decode()
            assert f"http://127.0.0.1:{free_port}" in log
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                answer = await http.get(f"http://127.0.0.1:{free_port}/version")
                assert answer.status_code == 200
            process.send_signal(number)
            log += (await process.stderr.read()).decode()
            assert await process.wait() == 0, log
        assert "Traceback" not in log
        assert "gateway stopped" in log
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
