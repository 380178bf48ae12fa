"""docs/choosing.md shows figures of our own benchmark, as its reports have them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "choosing.md").read_text(encoding="utf-8")


def report(name: str) -> str:
    return (DOCS / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")


def cells(text: str, label: str, heading: str = "") -> list[str]:
    """The cells of the first row that `label` begins, behind `heading`."""
    behind = text[text.index(heading) :]
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in behind.splitlines())
    return next(row[1:] for row in rows if row and row[0] == label)


def bold(cell: str) -> str:
    """The speed in a cell of a report."""
    found = re.search(r"\*\*([\d.,]+)\*\*", cell)
    return found[1] if found else ""


def ratio(cell: str) -> str:
    """The ratio to plain decoding in a cell of a report."""
    found = re.search(r"×([\d.]+)", cell)
    assert found is not None, cell
    return found[1]


@pytest.mark.parametrize(
    "load", ["1 client, T=0", "8 clients, T=0", "1 client, T=1", "8 clients, T=1"]
)
def test_gains_by_load_are_the_report_s(load: str) -> None:
    names = cells(report("cpu"), "", f"## {load}")
    ratios = map(ratio, cells(report("cpu"), "outrider both", f"## {load}"))
    measured = dict(zip(names, ratios, strict=True))
    columns = cells(GUIDE, "", "**By load**")
    assert [measured[name] for name in columns] == cells(GUIDE, load, "**By load**")


@pytest.mark.parametrize(("label", "method"), [("n-gram", "ngram"), ("suffix", "suffix")])
def test_drafts_by_k_are_the_report_s(label: str, method: str) -> None:
    shown = cells(GUIDE, f"{label}, accepted of drafted", "**K.**")
    counted = [
        cells(report("exactness_1_client"), f"{method} K={k} T=0 1 client")[3] for k in (1, 4, 8)
    ]
    assert shown == [count.replace("/", " of ") for count in counted]


def test_speeds_of_a_gpu_are_the_reports() -> None:
    for label, row in (
        ("plain", "outrider plain"),
        ("both, as many drafts as pay", "outrider both"),
    ):
        measured = [bold(cell) for cell in cells(report("gpu"), row, "## T=0")]
        assert cells(GUIDE, label, "**GPU.**") == measured
    every = cells(report("gpu_every_draft"), "outrider both", "## T=0")
    shown = cells(GUIDE, "both, every draft verified, over plain", "**GPU.**")
    assert shown[:3] == [ratio(cell) for cell in every]


def test_what_bench_read_of_both_servers_is_its_report_s() -> None:
    rows = [line for line in report("bench").splitlines() if re.match(r"\| \S+.*\| [18] \|", line)]
    speedups = [row.split("|")[5].split()[0] for row in rows]
    one, eight, theirs_one, theirs_eight = speedups
    assert f"{one} and {eight} with our two proposers, {theirs_one} and {theirs_eight} with" in (
        " ".join(GUIDE.split())
    )
