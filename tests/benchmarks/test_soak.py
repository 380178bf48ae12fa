"""A whole soak, very short: the real server on a tiny model, proposers killed in the middle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.soak import LazyTarget, main, parse, run
from benchmarks.soak_replay import pair_gap
from benchmarks.tiny_model import make_tiny_model


@pytest.mark.long
def test_a_short_soak_breaks_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    arguments = ["--tiny", "--minutes=0.1", "--clients=4", "--kill-seconds=2"]
    arguments += ["--replay-every=3", "--sample-seconds=0.2", f"--out={tmp_path}"]
    run(parse(arguments), arguments, Console(quiet=True))
    report = json.loads((tmp_path / "soak.json").read_text())
    # Whether memory is flat cannot be seen in so short a time.
    assert [text for text in report["problems"] if " grew from " not in text] == []
    assert report["requests"]["failed"] == 0, report["failures"]
    assert report["requests"]["answered"] > 50
    assert report["not_offered"] == []
    assert sum(report["kills"].values()) >= 1
    assert report["replays"]["outputs"].get("different", 0) == 0
    assert report["replays"]["outputs"]["equal"] > 0
    assert all(one["passed"] for one in report["at_end"])
    held = {one["what"] for one in report["at_end"]}
    assert {"KV blocks not free", "sequences open at ngram", "descriptors of verifier"} <= held
    assert report["server"]["draft tokens accepted"] > 0
    assert "**Passed.**" in (tmp_path / "soak.md").read_text() or report["problems"]


def test_the_tiny_model_is_the_same_each_time_and_judges_differences(tmp_path: Path) -> None:
    first = LazyTarget(make_tiny_model(tmp_path / "a"))
    second = LazyTarget(make_tiny_model(tmp_path / "b"))
    row = first.logits([5, 6, 7], 3)[0]
    assert (row == second.logits([5, 6, 7], 3)[0]).all()
    best, worst = int(row.argmax()), int(row.argmin())
    body = {"seed": 1, "temperature": 0}
    gap = pair_gap(first, [5, 6], [7], (best, worst), body, 0)
    assert gap == pytest.approx(float(row.max() - row.min()), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clients=0"], "--clients"),
        (["--minutes=-1"], "--minutes"),
        (["--max-model-len=100"], "--max-model-len: 100 is less than 1024"),
    ],
)
def test_bad_options_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_model_that_is_not_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["soak", "--model", str(tmp_path / "no-such-model")])
    assert main() == 2
