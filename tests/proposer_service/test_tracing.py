"""A sequence's span: from its open to its close, under the request's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from speculation.v1 import proposer_pb2

from outrider import telemetry as names
from outrider.trace_settings import TraceSettings
from proposer_service.server import start
from tests.collector import Collector, Span, collecting
from tests.proposer_service.serving import TEXT, settings_at
from tests.proposer_service.verifier import commit, opening, propose, step

TRACE = "0af7651916cd43dd8448eb211c80319c"
REQUEST = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{REQUEST}-01"


@pytest.fixture
def collector(socket_dir: Path) -> Iterator[Collector]:
    with collecting(f"unix:{socket_dir}/c.sock") as running:
        yield running


def traced(
    number: int, ids: list[int], k: int = 0, parent: str = PARENT, epoch: int = 1
) -> proposer_pb2.SequenceUpdate:
    update = opening(number, ids, k=k, epoch=epoch)
    update.open.traceparent = parent
    return update


async def spans_of(
    collector: Collector, folder: Path, *steps: proposer_pb2.Step, ratio: float = 1.0
) -> list[Span]:
    """What is told of a stream of these steps, once the proposer has ended."""
    settings = settings_at(
        folder, trace=TraceSettings(collector.address, sample_ratio=ratio), name="n1"
    )
    running = await start(settings)
    try:
        async with propose(running.address) as stream:
            await stream.greet()
            for one in steps:
                await stream.ask(one)
    finally:
        await running.stop()
    return collector.of(names.PROPOSE_SPAN)


async def test_counts_of_one_sequence(collector: Collector, socket_dir: Path) -> None:
    (span,) = await spans_of(
        collector,
        socket_dir,
        step(1, traced(1, TEXT, k=3)),
        step(2, commit(1, len(TEXT), [3, 4], k=5)),
        step(3, commit(1, len(TEXT) + 2, [500], k=5)),
        step(4, commit(1, len(TEXT) + 3, [501])),
        step(5, closes=[(1, True)]),
    )
    assert (span.trace_id, span.parent) == (TRACE, REQUEST)
    assert span.attributes[names.PROPOSER] == "n1"
    assert span.attributes[names.METHOD] == "ngram"
    assert span.attributes[names.VERIFIER] == "verifier-1"
    # The third step found nothing, the fourth wanted nothing.
    assert span.attributes[names.STEPS] == 3
    assert span.attributes[names.PROPOSE_BLOCKS] == 2
    assert span.attributes[names.DRAFT_TOKENS] == 8
    assert span.attributes[names.PROPOSE_DRAFT_NS] > 0
    assert span.resource["service.name"] == names.PROPOSER_SERVICE
    assert 0 < span.start_ns < span.end_ns


@pytest.mark.parametrize(
    "parent", ["", "garbage", f"00-{TRACE}-{REQUEST}-00", f"00-{'0' * 32}-{REQUEST}-01"]
)
async def test_what_the_verifier_does_not_trace_is_not_traced_here(
    collector: Collector, socket_dir: Path, parent: str
) -> None:
    steps = (step(1, traced(1, TEXT, k=3, parent=parent)), step(2, closes=[(1, True)]))
    assert await spans_of(collector, socket_dir, *steps) == []


async def test_a_share_of_its_own_does_not_overrule_the_verifier(
    collector: Collector, socket_dir: Path
) -> None:
    steps = (step(1, traced(1, TEXT, k=3)), step(2, closes=[(1, True)]))
    assert len(await spans_of(collector, socket_dir, *steps, ratio=0.0)) == 1


async def test_each_sequence_has_its_own_span(collector: Collector, socket_dir: Path) -> None:
    other = f"00-{'1' * 32}-{REQUEST}-01"
    spans = await spans_of(
        collector,
        socket_dir,
        step(1, traced(1, TEXT, k=3), traced(2, TEXT, k=1, parent=other), opening(3, TEXT, k=2)),
        step(2, closes=[(1, True), (2, False), (3, True)]),
    )
    tokens = {span.trace_id: span.attributes[names.DRAFT_TOKENS] for span in spans}
    assert tokens == {TRACE: 3, "1" * 32: 1}


async def test_a_resync_begins_another_one(collector: Collector, socket_dir: Path) -> None:
    spans = await spans_of(
        collector,
        socket_dir,
        step(1, traced(1, TEXT, k=3)),
        step(2, traced(1, TEXT, k=2, epoch=2)),
        step(3, closes=[(1, True)]),
    )
    assert [span.attributes[names.DRAFT_TOKENS] for span in spans] == [3, 2]


async def test_a_sequence_that_was_never_closed_ends_with_its_stream(
    collector: Collector, socket_dir: Path
) -> None:
    (span,) = await spans_of(collector, socket_dir, step(1, traced(1, TEXT, k=3)))
    assert span.attributes[names.DRAFT_TOKENS] == 3


async def test_a_contradiction_ends_the_span_of_the_sequence_it_names(
    collector: Collector, socket_dir: Path
) -> None:
    spans = await spans_of(
        collector,
        socket_dir,
        step(1, traced(1, TEXT, k=3)),
        step(2, commit(1, 99, [3], k=3)),
    )
    assert [span.attributes[names.STEPS] for span in spans] == [1]


async def test_a_prompt_in_chunks_is_one_span(collector: Collector, socket_dir: Path) -> None:
    first = traced(1, TEXT[:5])
    first.open.more, first.open.prompt_length = True, len(TEXT)
    last = opening(1, TEXT[5:], offset=5, k=3, prompt_length=len(TEXT))
    steps = (step(1, first), step(2, last), step(3, closes=[(1, True)]))
    (span,) = await spans_of(collector, socket_dir, *steps)
    assert span.attributes[names.STEPS] == 1
