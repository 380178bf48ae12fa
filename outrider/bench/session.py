"""One benchmark against running servers: who is compared, and what is worth a note.

Knows the order of steps (reach, probe, warm up, measure); does not know command lines or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from outrider.bench.arms import BASELINE, SPECULATION, Arm, ArmRun, Load, measure, warm_up
from outrider.bench.client import Ask, Server
from outrider.bench.probe import Profile, probe, wait_until_reachable
from outrider.bench.records import Record
from outrider.bench.samples import Chosen
from outrider.errors import InputError, OperationError

# Called with the number of requests that will be sent, and what is measured.
OnStart = Callable[[int, str], None]
OnDone = Callable[[Arm, Record], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The servers. `model` None: the first that is served. Times are seconds.

    `baseline_url` is a server without speculation; without it the baseline is asked of the same
    server, where a request can turn speculation off. `baseline` False: none is measured.
    `insecure` takes any certificate.
    """

    base_url: str
    baseline_url: str | None = None
    model: str | None = None
    baseline: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 0.0
    request_timeout_s: float = 600.0
    insecure: bool = False
    transports: Mapping[str, httpx.AsyncBaseTransport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured with which prompts; `ks` are ceilings to ask for, None: none.

    `num_warmups` None: as many as run at once, at most 8. `cold`: see arms.measure.
    """

    chosen: Chosen
    ask: Ask
    loads: tuple[Load, ...]
    ks: tuple[int | None, ...] = (None,)
    proposer: str | None = None
    num_warmups: int | None = None
    cold: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """All arms at one load. `client_cpu` is this process's share of one core meanwhile."""

    load: Load
    runs: tuple[ArmRun, ...]
    client_cpu: float

    @property
    def baseline(self) -> ArmRun | None:
        return next((run for run in self.runs if run.arm.is_baseline), None)

    @property
    def speculative(self) -> list[ArmRun]:
        return [run for run in self.runs if not run.arm.is_baseline]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was measured, the servers' profiles, and what a reader must know."""

    points: tuple[Point, ...]
    profiles: Mapping[str, Profile]
    notes: tuple[str, ...]


async def run_session(
    target: Target,
    wanted: Wanted,
    *,
    on_start: OnStart = lambda total, what: None,
    on_done: OnDone = lambda arm, record: None,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Outcome:
    """Measure every load with every arm.

    Raises InputError for what the servers or the prompts cannot do, OperationError where a server
    is not reached, refuses, or answers none of an arm's requests.
    """
    for sample in wanted.chosen.samples:
        sample.prompt_fields(wanted.ask.backend)
    async with AsyncExitStack() as stack:
        arms, notes = await _arms(stack, target, wanted)
        points = []
        for load in wanted.loads:
            what = describe_load(load)
            on_start(len(arms) * load.runs * len(wanted.chosen.samples), what)
            await _warm(arms, wanted, load)
            wall, cpu = time.perf_counter(), time.process_time()
            runs = await measure(
                arms,
                wanted.chosen.samples,
                wanted.ask,
                load,
                cold=wanted.cold,
                on_done=on_done,
            )
            wall = time.perf_counter() - wall
            share = (time.process_time() - cpu) / wall if wall > 0 else 0.0
            points.append(Point(load, tuple(runs), share))
            on_point(points[-1])
    for point in points:
        _require_answers(point)
    return Outcome(tuple(points), {arm.server.url: arm.profile for arm in arms}, tuple(notes))


def describe_load(load: Load) -> str:
    """For instance `8 clients` or `2 requests/s`."""
    clients = load.max_concurrency
    parts = [] if clients is None else [f"{clients} client{'' if clients == 1 else 's'}"]
    if load.ramp is not None:
        parts.append(f"{load.ramp.start:g} to {load.ramp.end:g} requests/s")
    elif load.open_loop:
        parts.append(f"{load.request_rate:g} requests/s")
    return ", ".join(parts) or "all at once"


async def _arms(
    stack: AsyncExitStack, target: Target, wanted: Wanted
) -> tuple[list[Arm], list[str]]:
    server, profile = await _reach(stack, target, target.base_url, wanted)
    for option, value in (
        ("--num-speculative-tokens", next((k for k in wanted.ks if k is not None), None)),
        ("--proposer", wanted.proposer),
    ):
        if value is not None and not profile.takes_speculative_decoding:
            raise InputError(
                f"{option}: {value!r} cannot be asked of {server.url}: only Outrider's server "
                "takes it with a request; start one server for each K (outrider bench sweep "
                "--serve-cmd)"
            )
    arms = [
        Arm(
            SPECULATION if k is None else f"K={k}",
            server,
            profile,
            _speculation(k, wanted.proposer),
            k=k,
        )
        for k in wanted.ks
    ]
    notes = []
    if not target.baseline:
        notes.append("There is no baseline: --no-baseline.")
    elif target.baseline_url is not None:
        plain, plain_profile = await _reach(stack, target, target.baseline_url, wanted)
        off: Mapping[str, Any] = _OFF if plain_profile.takes_speculative_decoding else {}
        arms.insert(0, Arm(BASELINE, plain, plain_profile, off, is_baseline=True))
    elif profile.takes_speculative_decoding:
        arms.insert(0, Arm(BASELINE, server, profile, _OFF, is_baseline=True))
    else:
        notes.append(
            f"There is no baseline: a request cannot turn speculation off at {server.url}. Give "
            "--baseline-url a server of the same model without speculation."
        )
    return arms, notes


_OFF: Mapping[str, Any] = {"speculative_decoding": {"enabled": False}}


def _speculation(k: int | None, proposer: str | None) -> dict[str, Any]:
    asked: dict[str, Any] = {} if k is None else {"num_speculative_tokens": k}
    if proposer is not None:
        asked["proposer"] = proposer
    return {"speculative_decoding": asked} if asked else {}


async def _reach(
    stack: AsyncExitStack, target: Target, url: str, wanted: Wanted
) -> tuple[Server, Profile]:
    server = await stack.enter_async_context(
        Server(
            url,
            headers=target.headers,
            timeout_s=target.request_timeout_s,
            insecure=target.insecure,
            transport=target.transports.get(url),
        )
    )
    await wait_until_reachable(server, target.ready_timeout_s)
    return server, await probe(server, target.model, wanted.chosen.samples[0], wanted.ask)


async def _warm(arms: Sequence[Arm], wanted: Wanted, load: Load) -> None:
    at_once = min(load.max_concurrency or 8, 8, len(wanted.chosen.samples))
    count = at_once if wanted.num_warmups is None else wanted.num_warmups
    for arm in arms:
        records = await warm_up([arm], wanted.ask, count, load.max_concurrency or max(count, 1))
        if records and not any(record.ok for record in records):
            raise OperationError(
                f"{arm.server.url} answers no request of the arm {arm.name}: {records[0].error}"
            )


def _require_answers(point: Point) -> None:
    for run in point.runs:
        records = run.records
        if records and not any(record.ok for record in records):
            raise OperationError(
                f"{run.arm.server.url}: all {len(records)} requests of the arm {run.arm.name} "
                f"failed; the first: {records[0].error}"
            )
