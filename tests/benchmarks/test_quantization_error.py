"""The distance between distributions that the quantization report gives, and its texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.quantization_error import distance, measure, parse, texts
from benchmarks.tiny_model import make_tiny_model


def test_equal_distributions_are_no_distance_apart() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25]]).log()
    assert distance(p, p) == {"kl_mean": 0.0, "kl_largest": 0.0, "tv": 0.0, "same_argmax": 1.0}


def test_distances_are_those_of_the_definitions() -> None:
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    q = torch.tensor([[0.25, 0.75], [0.9, 0.1]])
    found = distance(p.log(), q.log())
    assert found["kl_largest"] == pytest.approx(0.1438, abs=1e-4)
    assert found["kl_mean"] == pytest.approx(0.1438 / 2, abs=1e-4)
    assert found["tv"] == pytest.approx(0.125)
    assert found["same_argmax"] == 0.5


def test_a_report_has_each_scheme_with_and_without_the_head(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    ids = texts(folder, 2, 20)
    assert [one.shape for one in ids] == [(1, 20), (1, 20)]
    results = measure(folder, ids)
    cases = [(row["quantization"], row["head"]) for row in results]
    assert cases == [("int8", False), ("int8", True), ("fp8", False), ("fp8", True)]
    assert all(0 < row["kl_mean"] < 0.1 for row in results)
    assert results[0]["kl_mean"] < results[2]["kl_mean"], "int8 is the nearer of the two"


def test_a_model_must_be_named() -> None:
    with pytest.raises(SystemExit):
        parse([])
