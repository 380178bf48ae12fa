"""Results on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.bench.arms import Load
from outrider.bench.arrivals import Ramp, Strategy
from outrider.bench.saving import (
    read_json,
    result_name,
    without_secrets,
    writable_folder,
    write_json,
    write_text,
)
from outrider.errors import InputError, OperationError
from tests.outrider.bench.results import point, sweep


def test_names_are_vllm_s() -> None:
    date = "2026-01-02T03:04:05Z"
    assert result_name("openai", Load(max_concurrency=8), "org/my model", date) == (
        "openai-infqps-concurrency8-my_model-20260102T030405Z.json"
    )
    slow = Load(request_rate=0.5)
    assert result_name("l", slow, "m", date) == "l-0.5qps-m-20260102T030405Z.json"
    # A label is no folder.
    assert result_name("a/../b", slow, "m", date).startswith("a_.._b-0.5qps")
    rising = Load(ramp=Ramp(Strategy.LINEAR, 1.0, 4.5))
    assert result_name("l", rising, "m", date).startswith("l-ramp-up-linear-1qps-4.5qps-m-")


def test_a_result_comes_back_as_it_went(tmp_path: Path) -> None:
    document = sweep(point())
    write_json(tmp_path / "r.json", document)
    assert read_json(tmp_path / "r.json") == document


def test_appended_results_are_lines(tmp_path: Path) -> None:
    for number in (1, 2):
        write_json(tmp_path / "r.json", {"n": number}, append=True)
    lines = (tmp_path / "r.json").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2]


def test_a_folder_is_made_or_refused(tmp_path: Path) -> None:
    assert writable_folder(tmp_path / "a" / "b", "--x").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--x: the folder .*file/c cannot be made: not a dir"):
        writable_folder(tmp_path / "file" / "c", "--x")


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="cannot be written: is a directory"):
        write_text(tmp_path, "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no file"), ("{", "is no saved result"), ("{}", "no result of outrider")],
)
def test_what_is_no_result_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_json(path)


def test_a_kept_command_line_holds_no_secret() -> None:
    given = ["bench", "serve", "--header", "Authorization=x", "--header=A=y", "--label", "--header"]
    kept = without_secrets(given)
    assert kept == ["bench", "serve", "--header", "…", "--header=…", "--label", "--header"]
