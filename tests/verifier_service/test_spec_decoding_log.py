"""`SpecDecoding metrics:` lines, as users of vLLM read them."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from outrider.acceptance import Acceptance, Round
from tests.verifier_service.serving import answering, request, serving, until
from verifier_service.spec_decoding_log import SpecDecodingLog

NAME = "verifier_service.spec_decoding_log"


def made(drafted: int, accepted: int) -> Round:
    return Round(0, drafted, drafted, accepted, accepted + 1)


def filled(*rounds: tuple[int, int]) -> Acceptance:
    sums = Acceptance(3)
    for drafted, accepted in rounds:
        sums.add(made(drafted, accepted))
    return sums


def test_the_line_has_vllms_fields_and_roundings() -> None:
    sums = Acceptance(3)
    log = SpecDecodingLog(sums, now=100.0)
    for drafted, accepted in ((3, 2), (3, 0), (2, 2)):
        sums.add(made(drafted, accepted))
    assert log.line(104.0) == (
        "SpecDecoding metrics: Mean acceptance length: 2.33, "
        "Accepted throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, "
        "Accepted: 4 tokens, Drafted: 8 tokens, "
        "Per-position acceptance rate: 0.667, 0.667, 0.000, "
        "Avg Draft acceptance rate: 50.0%"
    )


def test_a_positions_rate_is_over_the_steps_that_reached_it() -> None:
    log = SpecDecodingLog(sums := Acceptance(3), now=0.0)
    for drafted, accepted in ((1, 1), (1, 1), (1, 0), (3, 3)):
        sums.add(made(drafted, accepted))
    line = log.line(1.0)
    assert line is not None and "rate: 0.750, 1.000, 1.000," in line


def test_a_line_is_about_its_interval_alone() -> None:
    sums = filled((3, 3), (3, 3))
    log = SpecDecodingLog(sums, now=0.0)
    assert log.line(10.0) is None
    sums.add(made(2, 1))
    line = log.line(20.0)
    assert line is not None and "Accepted: 1 tokens, Drafted: 2 tokens" in line
    assert "Accepted throughput: 0.10 tokens/s" in line
    assert log.line(30.0) is None


async def test_a_verifier_logs_it_by_itself(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == NAME]

    with caplog.at_level(logging.INFO, NAME):
        async with serving(answering(per_round=3), socket_dir, log_stats_interval_s=0.01) as client:
            reply = await client.generate(request())
            await until(lambda: bool(lines()))
    assert reply.finished is not None
    accepted = reply.finished.acceptance.num_accepted_draft_tokens
    told = sum(int(n) for line in lines() for n in re.findall(r"Accepted: (\d+) tokens", line))
    assert 0 < told <= accepted
    assert all(r.levelno == logging.INFO for r in caplog.records if r.name == NAME)


async def test_an_interval_of_0_logs_nothing(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    with caplog.at_level(logging.INFO, NAME):
        async with serving(answering(), socket_dir, log_stats_interval_s=0.0) as client:
            await client.generate(request())
            names = [str(task.get_coro()) for task in asyncio.all_tasks() - before]
    assert not any("log_spec_decoding" in name for name in names)
    assert not [r for r in caplog.records if r.name == NAME]
