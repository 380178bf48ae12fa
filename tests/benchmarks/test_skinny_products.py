"""The comparison of products of few rows, without a GPU: what is tried, what is said of times."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks import skinny_products
from benchmarks.skinny_candidates import candidates
from benchmarks.skinny_products import PRODUCTS, ROWS, Cell, better, bucket_of, forwards, source
from verifier_service.engines.skinny_tiles import Shape, Tile, tile_for

MULTIPROCESSORS = 132


def cells(quick: Tile | None = None) -> list[Cell]:
    """All cells: torch's product takes 2 us, the table's tile 1, and `quick` half of one."""
    found = []
    for name, outputs, depth, _ in PRODUCTS:
        for rows in ROWS:
            cell = Cell(name, outputs, depth, rows, 2e-6)
            chosen = tile_for(rows, outputs, depth, MULTIPROCESSORS)
            if chosen is not None:
                cell.tiles[chosen] = 1e-6
            if quick is not None and name == "down" and bucket_of(rows) == quick.rows:
                cell.tiles[quick] = 0.5e-6
            found.append(cell)
    return found


def test_candidates_are_few_and_fit_a_multiprocessor() -> None:
    for _, outputs, depth, _ in PRODUCTS:
        for bucket in (16, 32, 64, 128):
            tiles = candidates(bucket, outputs, depth, MULTIPROCESSORS)
            assert 4 <= len(tiles) == len(set(tiles)) <= 8
            for tile in tiles:
                assert tile.rows == bucket and tile.shape.shared(bucket) <= 227 << 10


def test_a_forward_is_its_products_as_often_as_they_come() -> None:
    first = forwards(cells(), MULTIPROCESSORS)[1].split()
    assert first == ["1", "0.258", "0.129", "0.129"]
    last = forwards(cells(), MULTIPROCESSORS)[-1].split()
    assert last == ["128", "0.258", "0.258", "0.258"]


def test_what_is_said_of_a_better_tile_is_a_line_of_the_table() -> None:
    assert better(cells(), MULTIPROCESSORS) == []
    quick = Tile(32, Shape(256, 64, 8, 4), 2)
    (line,) = better(cells(quick), MULTIPROCESSORS)
    names = {"Tile": Tile, "Shape": Shape}
    assert eval("{" + line + "}", names) == {(32, 4096, 14336, MULTIPROCESSORS): quick}
    assert eval(source(None), names) is None


def test_torchs_product_is_said_to_be_better_where_it_is() -> None:
    slow = cells()
    for cell in slow:
        if cell.name == "head" and cell.rows in (1, 8, 16):
            cell.torch = 0.5e-6
    (line,) = better(slow, MULTIPROCESSORS)
    assert line.strip() == "(16, 49152, 4096, 132): None,"


def test_wrong_tiles_are_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (Tile(16, Shape(64, depth, 4, 4), 1) for depth in (64, 128))

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
        return x @ weight.T + (tile == bad)

    class NoStream:
        def wait_stream(self, other: object) -> None: ...

    monkeypatch.setattr(skinny_products, "launch", launch)
    monkeypatch.setattr(skinny_products, "seconds_each", lambda *rest: 1e-6)
    monkeypatch.setattr(torch.cuda, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "current_stream", NoStream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    tiles = {16: [good, bad], 32: [], 64: [], 128: []}
    found = skinny_products.measure("down", 4, 64, torch.randn(600), tiles)
    assert [list(cell.tiles) for cell in found] == [[good]] * 3 + [[]] * 3
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and all("IS WRONG" in line for line in printed)
