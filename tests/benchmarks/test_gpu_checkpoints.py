from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import gpu_checkpoints
from benchmarks.gpu_checkpoints import make
from outrider.errors import OperationError

# Writes a folder of the big model that names the small one and the device.
PADDING = """
import pathlib, sys
small, big, option, device = sys.argv[1:]
folder = pathlib.Path(big)
folder.mkdir()
(folder / "config.json").write_text(f"{pathlib.Path(small).name} {option} {device}")
"""


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The GGUF files that were converted; each makes a folder with one file."""
    files: list[Path] = []

    def convert(source: Path, target: Path, report: Callable[[int, int], None]) -> None:
        files.append(source)
        target.mkdir()
        (target / "config.json").write_text("small")

    monkeypatch.setattr(gpu_checkpoints, "convert_llama_gguf", convert)
    return files


def test_the_big_checkpoint_is_made_of_the_small_one_and_kept(
    tmp_path: Path, converted: list[Path]
) -> None:
    padding = tmp_path / "pad.py"
    padding.write_text(PADDING)
    models = tmp_path / "models"
    for _ in range(2):
        big = make(tmp_path / "m.gguf", padding, models, "cpu")
        assert big == models / "big"
    assert (big / "config.json").read_text() == "small --device cpu"
    assert converted == [tmp_path / "m.gguf"]


def test_without_padding_the_small_one_is_measured(tmp_path: Path, converted: list[Path]) -> None:
    assert make(tmp_path / "m.gguf", None, tmp_path, "cpu") == tmp_path / "small"


def test_what_was_cut_off_is_made_again(tmp_path: Path, converted: list[Path]) -> None:
    (tmp_path / ".small").mkdir()
    (tmp_path / ".small" / "half").touch()
    small = make(tmp_path / "m.gguf", None, tmp_path, "cpu")
    assert [path.name for path in small.iterdir()] == ["config.json"]


def test_a_script_that_fails_is_an_error(tmp_path: Path, converted: list[Path]) -> None:
    padding = tmp_path / "pad.py"
    padding.write_text("raise SystemExit(3)")
    with pytest.raises(OperationError, match="ended with code 3"):
        make(tmp_path / "m.gguf", padding, tmp_path, "cpu")
    assert not (tmp_path / "big").exists()
