"""One line an event, to standard error."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from outrider import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_line_has_time_level_name_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    logging.getLogger("outrider.test").info("served %d", 3)
    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info outrider\.test: served 3\n", line
    )


def test_level_hides_what_is_below(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug")
    logs.configure("error")
    logging.getLogger("outrider.test").warning("hidden")
    logging.getLogger("outrider.test").error("shown")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("shown")


def test_exceptions_keep_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    try:
        raise RuntimeError("inside")
    except RuntimeError:
        logging.getLogger("outrider.test").exception("outside")
    text = capsys.readouterr().err
    assert "error outrider.test: outside\nTraceback" in text
    assert "RuntimeError: inside" in text


@pytest.mark.parametrize("level", ["", "INFO", "trace", "warn"])
def test_unknown_levels_name_the_known(level: str) -> None:
    with pytest.raises(ValueError, match="is not one of debug, info, warning, error"):
        logs.configure(level)
