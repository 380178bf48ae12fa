"""docs/offline.md: its example runs, and its table of options has all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.llm_options import LLMOptions
from tests.outrider.llm.conftest import toy_core

PAGE = (Path(__file__).parents[3] / "docs" / "offline.md").read_text()


def test_the_example_runs(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("verifier_service.build.build_core", toy_core)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(example.splitlines()) <= 10
    exec(example.replace("smollm2-135m", str(toy_folder)), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3 and any(re.search(r" (stop|length) [0-9.]+$", line) for line in lines)


def test_the_page_names_every_option() -> None:
    for option in LLMOptions.model_fields:
        assert f"`{option}" in PAGE, option
