"""docs/benchmarking.md says what the commands do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from outrider.bench.datasets import DATASETS
from outrider.commands import bench
from outrider.commands.bench_words import serve_options

PAGE = (Path(__file__).parents[3] / "docs" / "benchmarking.md").read_text(encoding="utf-8")


def commands() -> dict[str, click.Command]:
    group = typer.main.get_command(bench.app)
    return dict(group.commands)  # type: ignore[attr-defined]


def examples() -> list[list[str]]:
    """The words after `outrider bench` of each example, without what follows `--`."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [line for line in lines if line.startswith("$ outrider bench ")]
    words = [shlex.split(line.removeprefix("$ outrider bench "), comments=True) for line in found]
    return [one[: one.index("--")] if "--" in one else one for one in words]


def options(name: str) -> set[str]:
    return {option for param in commands()[name].params for option in param.opts}


def test_every_command_has_its_line() -> None:
    assert set(re.findall(r"^\| `outrider bench (\w+)` \|", PAGE, re.MULTILINE)) == set(commands())


@pytest.mark.parametrize("words", examples(), ids=" ".join)
def test_examples_use_options_that_there_are(words: list[str]) -> None:
    used = {word for word in words[1:] if word.startswith("--")}
    assert used
    taken = options(words[0])
    if words[0] in ("latency", "throughput"):
        # The rest is the started server's.
        taken |= {*serve_options()}
    assert used <= taken


def test_options_in_the_text_are_there() -> None:
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    used = set(re.findall(r"`(--[a-z][a-z-]+)", text))
    known = set().union(*map(options, commands()))
    others = {
        *("--tokenizer", "--random-input-len", "--plot-timeline"),
        *("--per-request-spec-decode-metrics", "--gpu-memory-utilization"),
    }
    assert used - known == others


def test_every_data_set_has_its_line() -> None:
    names = re.findall(r"^\| `(\w+)`(?: \(default\))? \|", PAGE, re.MULTILINE)
    assert names == list(DATASETS)


def test_where_files_come_from_is_told_alike() -> None:
    for name, dataset in DATASETS.items():
        for place in re.findall(r"github\.com/[\w/-]+\w|anon\w+/\w+", dataset.source):
            assert place in PAGE, name
