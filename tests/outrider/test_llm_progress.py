"""The progress bar of a call: ours, the caller's, or none."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.llm_progress import NoBar, open_bar


def test_our_bar_counts_prompts_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    bar = open_bar(True, 3)
    bar.tokens(40)
    bar.prompt()
    bar.prompt()
    bar.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Processed prompts" in shown.err and "2/3" in shown.err and "tokens/s" in shown.err


def test_no_bar_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bar = open_bar(False, 3)
    assert isinstance(bar, NoBar)
    bar.tokens(1)
    bar.prompt()
    bar.close()
    assert capsys.readouterr() == ("", "")


def test_the_callers_bar_is_made_updated_and_closed_as_tqdms() -> None:
    told: list[Any] = []

    class Tqdm:
        def __init__(self, **options: Any) -> None:
            told.append(options)

        def update(self, count: int) -> None:
            told.append(count)

        def close(self) -> None:
            told.append("closed")

    bar = open_bar(Tqdm, 2)
    bar.tokens(5)
    bar.prompt()
    bar.prompt()
    bar.close()
    assert told == [{"total": 2, "desc": "Processed prompts"}, 1, 1, "closed"]
