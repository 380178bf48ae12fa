"""`python -m benchmarks.simulate` as a command."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import simulate
from verifier_service.simulation.recording import (
    Header,
    Offer,
    RecordedRound,
    RecordedStep,
    Recording,
    write_recording,
)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two sequences at once, whose drafts are always right, on a flat device."""
    steps = [
        RecordedStep(
            0.01,
            0.0002,
            0.0,
            2,
            100,
            0,
            tuple(
                RecordedRound(s, at, 4, 4, True, 1, offers=(Offer("ngram", 4, 3, 4),))
                for s in (1, 2)
            ),
        )
        for at in range(50, 250)
    ]
    header = Header(4, {1: 0.01, 5: 0.01, 33: 0.011}, 100)
    path = tmp_path / "good.jsonl.gz"
    write_recording(path, Recording(header, tuple(steps)))
    return path


def output(*arguments: str) -> tuple[int, str]:
    stream = io.StringIO()
    code = simulate.main(list(arguments), Console(file=stream, width=120))
    return code, stream.getvalue()


def test_the_table_names_every_policy_and_the_best(recording: Path) -> None:
    code, text = output(str(recording))
    assert code == 0
    assert "good.jsonl.gz: 2 sequences, 2 at once" in text
    for policy in ("plain", "K=1", "K=2", "K=3", "K=4 (best)", "controller"):
        assert policy in text


def test_json_holds_the_ratios(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main([str(recording), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["good.jsonl.gz"]
    assert report["best_k"] == 4
    assert report["controller_of_plain"] > 2.0
    assert report["controller_of_best_k"] > 0.9
    assert set(report["tokens_per_second"]) == {
        "plain", "K=1", "K=2", "K=3", "K=4 (best)", "controller",
    }  # fmt: skip


def test_a_schedule_and_a_concurrency_may_be_tried(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(recording), "--json", "--concurrency", "1", "--schedule", "[[1, 9, 0]]"]
    assert simulate.main(options) == 0
    report = json.loads(capsys.readouterr().out)["good.jsonl.gz"]
    assert report["concurrency"] == 1
    assert report["controller_of_plain"] == pytest.approx(1.0)
    assert report["off_reasons"] == {"num_speculative_tokens_per_batch_size is 0": 400}


@pytest.mark.parametrize(
    ("content", "told"),
    [("{}\n", "this is no recording of rounds"), (None, "No such file")],
)
def test_a_wrong_file_is_one_clear_line(
    tmp_path: Path, content: str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.jsonl"
    if content is not None:
        path.write_text(content)
    assert simulate.main([str(path)]) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")


def test_a_bad_schedule_names_its_option(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main([str(recording), "--schedule", "[[2, 3, 1]]"]) == 2
    assert "--schedule: the first range" in capsys.readouterr().err.replace("\n", " ")
