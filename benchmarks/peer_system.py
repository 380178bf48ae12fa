"""vLLM: one engine a process, run by the interpreter of its own environment.

Knows the pipe protocol of peer_vllm.py and gpu_peer_vllm.py. The engine is called offline,
without HTTP: what its server would add is in the peer's favour left out.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.steady import Span, steady
from benchmarks.systems import Answer, Work

SCRIPT = Path(__file__).with_name("peer_vllm.py")
STOP_SECONDS = 60.0


class PeerFailed(Exception):
    """The peer's process ended; the message ends with its log."""


class PeerSystem:
    """A context in which the engine runs.

    It starts in the background; `wait_ready` blocks until it has. `speculative_config` is
    vLLM's, None for plain decoding. `launch` is the command in place of `python` with
    peer_vllm.py; its engine gets the further options `extra`, takes no more prompts at a time
    than a work has clients, and tells when each was answered.
    """

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        speculative_config: dict[str, Any] | None,
        *,
        dtype: str = "bfloat16",
        max_num_seqs: int = 8,
        max_model_len: int = 4096,
        kv_cache_gib: int = 1,
        launch: Sequence[str] | None = None,
        extra: Mapping[str, Any] | None = None,
        cwd: Path | None = None,
    ) -> None:
        options = {
            "model": str(model),
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "max_model_len": max_model_len,
            "kv_cache_gib": kv_cache_gib,
            "speculative_config": speculative_config,
            **(extra or {}),
        }
        self._keeps_clients = launch is not None
        self._max_num_seqs = max_num_seqs
        self._log = log
        self._command = [*(launch or (str(python), str(SCRIPT))), json.dumps(options)]
        self._cwd = cwd
        self._process: subprocess.Popen[str] | None = None
        self.versions: dict[str, str] = {}
        self.start_seconds = 0.0

    def __enter__(self) -> PeerSystem:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._cwd,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._running()
        if error is None and process.poll() is None:
            self._write({"quit": True})
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        else:
            process.kill()
        process.wait()

    def wait_ready(self) -> None:
        """Raises PeerFailed where the engine does not start."""
        ready = self._read()
        self.versions = ready["versions"]
        self.start_seconds = ready["start_seconds"]

    def generate(self, work: Work) -> Answer:
        all_at_once = min(len(work.prompts), self._max_num_seqs)
        if not self._keeps_clients and work.at_once < all_at_once:
            raise PeerFailed(
                f"{work.at_once} clients: the engine takes {self._max_num_seqs} prompts at a time"
            )
        self._write(
            {
                "prompts": [list(prompt) for prompt in work.prompts],
                "max_tokens": list(work.lengths),
                "temperature": work.temperature,
                "seed": work.seed,
                "ignore_eos": not work.stop_at_eos,
                "clients": work.at_once,
            }
        )
        return self._joined(self._read(), work)

    def _joined(self, answer: Mapping[str, Any], work: Work) -> Answer:
        joined = Answer(
            seconds=answer["seconds"],
            outputs=tuple(tuple(output) for output in answer["outputs"]),
            steps=answer["steps"],
            drafted=answer["drafted"],
            accepted=answer["accepted"],
        )
        if not self._keeps_clients:
            return joined
        counts = [len(output) for output in joined.outputs]
        spans = [Span(*span) for span in answer["spans"]]
        part = steady(spans, counts, work.at_once, joined.seconds)
        return replace(joined, steady_seconds=part.seconds, steady_tokens=part.tokens)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise PeerFailed("the peer was not started")
        return self._process

    def _write(self, message: dict[str, Any]) -> None:
        pipe = self._running().stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except BrokenPipeError as error:
            raise self._failed() from error

    def _read(self) -> dict[str, Any]:
        pipe = self._running().stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise self._failed()
        message: dict[str, Any] = json.loads(line)
        return message

    def _failed(self) -> PeerFailed:
        code = self._running().wait()
        lines = self._log.read_text(errors="replace").splitlines()
        return PeerFailed(f"the peer ended with code {code}: " + "\n".join(lines[-20:]))
