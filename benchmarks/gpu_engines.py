"""The engines of the GPU benchmark: what each is started with, and the rows it answers.

Knows how to start Outrider's server and vLLM's engine; they have the card one after the other, so
each is a phase that ends before the next begins.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.bars import BOTH, NGRAM, PLAIN, SUFFIX
from benchmarks.gpu_bars import VLLM_NGRAM, VLLM_PLAIN
from benchmarks.gpu_card import Samples, Watched
from benchmarks.gpu_load import Clients, LoadSystem
from benchmarks.machine import versions
from benchmarks.outrider_system import OutriderServer
from benchmarks.peer_system import PeerSystem
from benchmarks.systems import Row, System

ROOT = Path(__file__).resolve().parent.parent
# Row name -> the requests' `speculative_decoding` object.
OUR_ROWS: dict[str, dict[str, Any]] = {
    PLAIN: {"enabled": False},
    NGRAM: {"proposer": "ngram"},
    SUFFIX: {"proposer": "suffix"},
    BOTH: {},
}
# A row of servers that have such a proposer alone.
DRAFT_MODEL = "outrider draft model"
OUR_MODEL_ROWS: dict[str, dict[str, Any]] = {DRAFT_MODEL: {"proposer": "draft_model"}}
# Plain again, as streams, at the most clients and the first temperature: what streaming costs.
STREAMED = "outrider streamed"
PEER_ROWS: dict[str, dict[str, Any] | None] = {
    VLLM_PLAIN: None,
    VLLM_NGRAM: {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    },
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A running engine: its rows, and what the report says of it."""

    rows: tuple[Row, ...]
    versions: dict[str, str]
    start_seconds: float


class Phase(Protocol):
    """One engine on the card; `open` starts it, the stack's end stops it."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> str:
        """What the report shows of how it was started."""

    def open(self, stack: ExitStack) -> Opened: ...


@dataclass(frozen=True, slots=True)
class OutriderPhase:
    """Our server, whatever rows of it are wanted."""

    options_given: argparse.Namespace
    model: Path
    log: Path
    rows: tuple[str, ...]
    name: str = "outrider serve"

    @property
    def arguments(self) -> list[str]:
        given = self.options_given
        arguments = ["--device", given.device, "--max-model-len", str(given.max_model_len)]
        if given.max_num_batched_tokens is not None:
            arguments += ["--max-num-batched-tokens", str(given.max_num_batched_tokens)]
        return [*arguments, *given.serve_option]

    @property
    def options(self) -> str:
        configs = self.options_given.speculative_config
        # A draft model's folder is the reader's own affair.
        drafts = [f"{c.get('method')} K={c.get('num_speculative_tokens')}" for c in configs]
        given = ["--max-num-seqs", str(max(self.options_given.clients)), *self.arguments]
        return " ".join([*given, *([f"({', '.join(drafts)})"] if drafts else [])])

    def open(self, stack: ExitStack) -> Opened:
        began = time.monotonic()
        server = OutriderServer(
            str(self.model),
            self.log,
            dtype=self.options_given.dtype,
            max_num_seqs=max(self.options_given.clients),
            speculative_config=self.options_given.speculative_config,
            extra=self.arguments,
        )
        url = stack.enter_context(server).url
        seconds = time.monotonic() - began
        clients = stack.enter_context(Clients(url))
        given = self.options_given
        rows = tuple(
            _row(name, LoadSystem(clients, (OUR_ROWS | OUR_MODEL_ROWS)[name]), given)
            for name in self.rows
            if name != STREAMED
        )
        if STREAMED in self.rows:
            streams = LoadSystem(clients, OUR_ROWS[PLAIN], stream=True)
            at = ((max(given.clients),), (given.temperatures[0],))
            rows += (Row(STREAMED, streams, *at),)
        return Opened(rows, versions(["outrider", "torch", "transformers", "grpcio"]), seconds)


@dataclass(frozen=True, slots=True)
class PeerPhase:
    """One vLLM engine; each speculative configuration needs one of its own."""

    options_given: argparse.Namespace
    model: Path
    log: Path
    name: str

    @property
    def options(self) -> str:
        config = PEER_ROWS[self.name]
        return (
            f"offline, prefix caching off, max_num_seqs {max(self.options_given.clients)}, "
            f"gpu_memory_utilization {self.options_given.peer_memory:g}, "
            f"speculative_config {config or 'none'}"
        )

    def open(self, stack: ExitStack) -> Opened:
        given = self.options_given
        on_card = given.device == "cuda"
        peer = PeerSystem(
            Path(given.peer_python or sys.executable),
            self.model,
            self.log,
            PEER_ROWS[self.name],
            dtype=given.dtype,
            max_num_seqs=max(given.clients),
            max_model_len=given.max_model_len,
            launch=peer_command(given.peer_python, given.peer_env),
            extra={"gpu_memory_utilization": given.peer_memory if on_card else None},
            cwd=ROOT,
        )
        stack.enter_context(peer).wait_ready()
        return Opened((_row(self.name, peer, given),), peer.versions, peer.start_seconds)


def peer_command(python: str | None, environment: Path | None) -> tuple[str, ...]:
    """The command of vLLM's interpreter, in a shell that has sourced `environment`.

    A `python` with a folder in it must not depend on the working folder; links stay as they are,
    since a virtual environment's interpreter is one.
    """
    chosen = python or sys.executable
    if "/" in chosen:
        chosen = str(Path(chosen).absolute())
    command = (chosen, "-m", "benchmarks.gpu_peer_vllm")
    if environment is None:
        return command
    return ("bash", "-c", '. "$0" && exec "$@"', str(environment.absolute()), *command)


def plan_phases(
    options: argparse.Namespace, model: Path, logs: Path, only: Sequence[str]
) -> list[Phase]:
    """The engines that the wanted rows need, ours first; `only` are prefixes of row names.

    Raises ValueError for a prefix that no row has, and for vLLM's rows without its interpreter.
    """
    methods = [config.get("method") for config in options.speculative_config]
    drafting = OUR_MODEL_ROWS if "draft_model" in methods else {}
    known = (*OUR_ROWS, *drafting, STREAMED, *PEER_ROWS)
    for prefix in only:
        if not any(name.startswith(prefix) for name in known):
            raise ValueError(f"--rows: no row is called {prefix!r}; rows are {', '.join(known)}")
    wanted = [name for name in known if name.startswith(tuple(only))]
    ours = tuple(name for name in wanted if name not in PEER_ROWS)
    peers = [name for name in wanted if name in PEER_ROWS]
    if peers and options.peer_python is None and options.peer_env is None:
        if not ours:
            raise ValueError(f"--rows: {', '.join(peers)} need --peer-python or --peer-env")
        peers = []
    phases: list[Phase] = []
    if ours:
        phases.append(OutriderPhase(options, model, logs / "outrider.log", ours))
    phases += [
        PeerPhase(options, model, logs / f"{name.replace(' ', '-')}.log", name) for name in peers
    ]
    return phases


def watched(rows: Sequence[Row], samples: Samples) -> tuple[Row, ...]:
    """The same rows, whose answers also carry what the card did."""
    return tuple(replace(row, system=Watched(row.system, samples)) for row in rows)


def _row(name: str, system: System, options: argparse.Namespace) -> Row:
    return Row(name, system, tuple(options.clients), tuple(options.temperatures))
