"""What an operator sees while an engine starts: a bar on a terminal, lines in the log."""

from __future__ import annotations

import io
import logging
import re

import pytest
import rich.console

from verifier_service.engines.buckets import Buckets
from verifier_service.engines.start_progress import captured_one_by_one, stage

BUCKETS = Buckets(max_sequences=4, max_query=5, max_tokens=100)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal was sent."""
    sent = io.StringIO()
    console = rich.console.Console(file=sent, force_terminal=True, width=120)
    monkeypatch.setattr(rich.console, "Console", lambda **_: console)
    return sent


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [re.sub(r"seconds=.*", "seconds=", record.getMessage()) for record in caplog.records]


def test_every_bucket_is_captured_in_order() -> None:
    assert list(captured_one_by_one(BUCKETS, "decoding")) == list(BUCKETS)


def test_the_log_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        list(captured_one_by_one(BUCKETS, "decoding"))
    assert len(BUCKETS) == 8
    assert lines(caplog) == [
        "capturing 8 decoding steps, and compiling",
        "captured 1 of 8 decoding steps (4 sequences, 20 tokens) seconds=",
        "captured 5 of 8 decoding steps (2 sequences, 6 tokens) seconds=",
        "captured 8 of 8 decoding steps (2 sequences, 2 tokens) seconds=",
    ]
    assert capsys.readouterr() == ("", ""), "no bar where there is no terminal"


def test_a_terminal_shows_which_bucket_is_captured_and_how_many_are_left(
    terminal: io.StringIO,
) -> None:
    capturing = captured_one_by_one(BUCKETS, "prefill")
    next(capturing)
    first = terminal.getvalue()
    assert "capturing prefill steps (4 sequences, 20 tokens), and compiling" in first
    assert "0/8" in first
    next(capturing)
    second = terminal.getvalue()[len(first) :]
    assert "capturing prefill steps (4 sequences, 12 tokens)" in second
    assert "1/8" in second and "compiling" not in second


def test_a_terminal_is_told_of_compiling(terminal: io.StringIO) -> None:
    with stage("compiling the forward"):
        assert "compiling the forward" in terminal.getvalue()


def test_a_stage_ends_in_the_log_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), stage("compiling the forward"):
        assert lines(caplog) == ["compiling the forward"]
    assert lines(caplog)[1:] == ["compiling the forward: done seconds="]


def test_a_stage_that_fails_does_not_say_that_it_is_done(
    caplog: pytest.LogCaptureFixture, terminal: io.StringIO
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ValueError), stage("compiling"):
        raise ValueError
    assert lines(caplog) == ["compiling"]
    assert "\x1b[?25h" in terminal.getvalue(), "the cursor is back"
