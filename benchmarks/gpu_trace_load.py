"""A verifier's core in this process under a steady load, with real proposers beside it.

Knows how core and proposers are started and how clients keep asking; knows nothing of traces. The
edge (gateway, text, asyncio) is left out, as it is where the engine has a process of its own;
proposers are processes on Unix sockets.
"""

from __future__ import annotations

import itertools
import queue
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.outrider_system import ServerFailed
from outrider.probes import grpc_is_serving

if TYPE_CHECKING:
    from verifier_service.backend import ProposerStates
    from verifier_service.core import EngineCore
    from verifier_service.messages import Output

# As `gpu.py` serves them: the default window of five tokens hardly ever comes again.
OPTIONS = {"ngram": ["--prompt-lookup-min=2", "--prompt-lookup-max=5"]}
START_SECONDS = 60.0
READY_SECONDS = 120.0
POLL_SECONDS = 0.02


@contextmanager
def proposers(methods: Sequence[str], drafts: int, logs: Path) -> Iterator[list[str]]:
    """Addresses of one running proposer for each method. Raises ServerFailed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="o-")))
        addresses = []
        for method in methods:
            addresses.append(f"unix:{folder / method}.sock")
            log = stack.enter_context((logs / f"trace-{method}.log").open("wb"))
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "outrider.cli", "proposer", "--method", method),
                    f"--listen={addresses[-1]}",
                    f"--num-speculative-tokens={drafts}",
                    *OPTIONS.get(method, ()),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_stop, process)
        deadline = time.monotonic() + START_SECONDS
        for method, address in zip(methods, addresses, strict=True):
            while not grpc_is_serving(address):
                if time.monotonic() > deadline:
                    raise ServerFailed(f"the {method} proposer did not start")
                time.sleep(POLL_SECONDS)
        yield addresses


def wait_connected(attached: ProposerStates, count: int) -> None:
    """Until so many proposers have answered the verifier's greeting. Raises ServerFailed."""
    deadline = time.monotonic() + START_SECONDS
    while sum(bool(state.name) for state in attached.states()) < count:
        if time.monotonic() > deadline:
            raise ServerFailed(f"{count} proposers did not connect in time")
        time.sleep(POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Counts:
    """What all answers together have had so far."""

    tokens: int = 0
    rounds: int = 0
    accepted: int = 0

    def since(self, earlier: Counts) -> Counts:
        return Counts(
            self.tokens - earlier.tokens,
            self.rounds - earlier.rounds,
            self.accepted - earlier.accepted,
        )


@dataclass(slots=True)
class Load:
    """A context in which `clients` keep asking: each sends its next prompt when it is answered.

    An edge takes `edge_seconds` for each request, one after the other: answers that end together
    are not followed by prompts that come together. `speculating` False asks for no drafts. The
    engine's thread only counts and queues here.
    """

    core: EngineCore
    prompts: Sequence[Sequence[int]]
    clients: int
    temperature: float
    new_tokens: int
    speculating: bool
    edge_seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    _running: set[str] = field(default_factory=set)
    _first: dict[str, int] = field(default_factory=dict)
    _ended: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _errors: list[str] = field(default_factory=list)
    _feeder: threading.Thread | None = None

    def __enter__(self) -> Load:
        numbers = itertools.count()
        for _ in range(self.clients):
            self._ask(next(numbers))

        def feed() -> None:
            while (ended := self._ended.get()) is not None:
                self._running.discard(ended)
                time.sleep(self.edge_seconds)
                self._ask(next(numbers))

        self._feeder = threading.Thread(target=feed, name="load", daemon=True)
        self._feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._feeder is not None
        self._ended.put(None)
        self._feeder.join()
        for request_id in list(self._running):
            self.core.abort(request_id)
        deadline = time.monotonic() + READY_SECONDS
        while self.core.stats().running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def wait_until_decoding(self, tokens: int) -> None:
        """Until every first answer has so many tokens. Raises ServerFailed."""
        deadline = time.monotonic() + READY_SECONDS
        while len(self._first) < self.clients or min(self._first.values()) < tokens:
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.clients} clients had no {tokens} tokens each in time")
            time.sleep(POLL_SECONDS)

    def wait_for_tokens(self, tokens: int) -> None:
        """Until all answers together have had so many more. Raises ServerFailed."""
        wanted, deadline = self.counts.tokens + tokens, time.monotonic() + READY_SECONDS
        while self.counts.tokens < wanted:
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(f"{tokens} tokens did not come in time")
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raises ServerFailed where an answer or the engine failed."""
        if self._errors or self.core.failure:
            raise ServerFailed(self.core.failure or self._errors[0])

    def _ask(self, number: int) -> None:
        from verifier_service.messages import Request, Sampling

        request_id = f"{number}-{uuid.uuid4().hex[:8]}"
        prompt = list(self.prompts[number % len(self.prompts)])
        sampling = Sampling(temperature=self.temperature, seed=number, max_tokens=self.new_tokens)
        request = Request(
            request_id,
            prompt,
            sampling,
            num_speculative_tokens=None if self.speculating else 0,
            # Neither the prompt cache nor what a proposer remembers of other answers helps.
            cache_salt=request_id,
        )
        self._running.add(request_id)
        try:
            self.core.submit(request, lambda output: self._took(number, request_id, output))
        except RuntimeError as error:
            # The engine is dead: whoever waits for this load is told by `check`.
            self._errors.append(str(error))

    def _took(self, number: int, request_id: str, output: Output) -> None:
        count = len(output.token_ids)
        drafted = output.round is not None and output.round.drafted > 0
        accepted = output.round.accepted if output.round is not None else 0
        self.counts = Counts(
            self.counts.tokens + count,
            self.counts.rounds + drafted,
            self.counts.accepted + accepted,
        )
        if number < self.clients:
            key = str(number)
            self._first[key] = self._first.get(key, 0) + count
        if output.error or output.refusal:
            self._errors.append(output.error or output.refusal)
        if output.finish_reason is not None or output.error or output.refusal:
            self._ended.put(request_id)
