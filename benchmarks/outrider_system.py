"""Outrider itself: one `outrider serve` in processes of its own, asked over HTTP.

Knows the command line and the OpenAI endpoints; no other part of Outrider is imported. The same
running server answers with and without speculation, as each request says.
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from benchmarks.systems import Answer, Work

START_SECONDS = 600.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 600.0


class ServerFailed(Exception):
    """The server ended, or did not become healthy in time; the message ends with its log."""


class OutriderServer:
    """A context in which `outrider serve` runs; its log goes to `log`."""

    def __init__(
        self,
        model: str,
        log: Path,
        *,
        dtype: str = "bfloat16",
        max_num_seqs: int = 8,
        speculative_config: Sequence[dict[str, Any]] = (),
        extra: Sequence[str] = (),
    ) -> None:
        self._log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [
            *(sys.executable, "-m", "outrider.cli", "serve", model),
            *("--port", str(self.port), "--dtype", dtype, "--max-num-seqs", str(max_num_seqs)),
            *_speculation(speculative_config),
            *extra,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OutriderServer:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_healthy()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """Of `outrider serve` itself; its children are the services."""
        assert self._process is not None
        return self._process.pid

    def _wait_until_healthy(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerFailed(f"ended with code {self._process.returncode}: {self._tail()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise ServerFailed(f"not healthy after {START_SECONDS:.0f} s: {self._tail()}")

    def _stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])


class OutriderSystem:
    """One way to ask the server.

    `speculation` is the request's `speculative_decoding` object. With `warm` all requests share
    what the suffix proposer remembers of earlier answers; otherwise each request carries a cache
    salt of its own, so nothing measured earlier can help it.
    """

    _salts = itertools.count()

    def __init__(self, url: str, speculation: dict[str, Any], *, warm: bool = False) -> None:
        self._client = httpx.Client(base_url=url, timeout=REQUEST_SECONDS)
        self._speculation = speculation
        self._warm = warm

    def generate(self, work: Work) -> Answer:
        if self._warm:
            self._send(work)
        return self._send(work)

    def _send(self, work: Work) -> Answer:
        bodies = [self._body(work, index) for index in range(len(work.prompts))]
        with ThreadPoolExecutor(work.at_once) as pool:
            started = time.perf_counter()
            answers = list(pool.map(self._post, bodies))
            seconds = time.perf_counter() - started
        return join_answers(seconds, answers)

    def _body(self, work: Work, index: int) -> dict[str, Any]:
        salt = "warm" if self._warm else f"cold-{next(self._salts)}"
        return completion_body(work, index, self._speculation, salt)

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        response = self._client.post("/v1/completions", json=body)
        if response.status_code != 200:
            raise ServerFailed(f"HTTP {response.status_code}: {response.text[:500]}")
        answer: dict[str, Any] = response.json()
        return answer


def completion_body(
    work: Work, index: int, speculation: dict[str, Any], cache_salt: str
) -> dict[str, Any]:
    """The request for one prompt of `work`."""
    return {
        "prompt": list(work.prompts[index]),
        "max_tokens": work.lengths[index],
        "temperature": work.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "seed": work.seed + index,
        "ignore_eos": not work.stop_at_eos,
        "return_token_ids": True,
        "cache_salt": cache_salt,
        "speculative_decoding": speculation,
    }


def join_answers(seconds: float, answers: Sequence[dict[str, Any]]) -> Answer:
    """One answer of several completions' JSON objects."""
    sums = [(answer.get("metrics") or {}).get("speculative_decoding") or {} for answer in answers]
    details = [answer["usage"].get("prompt_tokens_details") or {} for answer in answers]
    return Answer(
        seconds=seconds,
        outputs=tuple(tuple(answer["choices"][0]["token_ids"]) for answer in answers),
        steps=sum(part.get("num_spec_steps", 0) for part in sums),
        drafted=sum(part.get("num_draft_tokens", 0) for part in sums),
        accepted=sum(part.get("num_accepted_draft_tokens", 0) for part in sums),
        cached_prompt_tokens=sum(part.get("cached_tokens") or 0 for part in details),
    )


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _speculation(configs: Sequence[dict[str, Any]]) -> list[str]:
    return ["--speculative-config", json.dumps(list(configs))] if configs else []
