"""The cost report of `--batch-invariant` on a tiny model: its loads, pairs and counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import batch_invariant
from benchmarks.batch_invariant import Load, blocks, measure, parse
from benchmarks.tiny_model import make_tiny_model


def test_a_report_has_its_loads_and_all_rows_are_the_same_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_model(tmp_path)
    monkeypatch.setattr(batch_invariant, "FIRST_ID", 1)
    monkeypatch.setattr(batch_invariant, "LAST_ID", 200)
    monkeypatch.setattr(batch_invariant, "CONTEXT", 40)
    monkeypatch.setattr(batch_invariant, "LOADS", (Load("1 sequence, 4 drafts", 1, 5, 40),))
    before = torch.get_num_threads()
    try:
        result = measure(folder, "cpu", "float32", 1, 1)
    finally:
        torch.set_num_threads(before)
    (load,) = result["cost"]
    assert load["load"] == "1 sequence, 4 drafts"
    assert load["plain_ms"] > 0 and load["invariant_ms"] > 0
    low, high = load["middle_half"]
    assert 0 < low <= load["relative_tokens_per_s"] <= high
    assert set(result["same_rows_with"].values()) == {"4 of 4"}
    assert set(result["same_rows_without"]) == set(result["same_rows_with"])


def test_sequences_have_blocks_of_their_own() -> None:
    class Engine:
        class cache:
            block_size = 32

    held = [block for row in range(8) for block in blocks(Engine(), row)]  # type: ignore[arg-type]
    assert len(set(held)) == len(held) == 8 * 9


@pytest.mark.parametrize("arguments", [[], ["--model", "x", "--repeats", "0"]])
def test_bad_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
