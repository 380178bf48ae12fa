"""A supervised process ends when its parent is gone, and takes sockets and folder along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.parent import exit_on_sigterm

WAIT_S = 30.0

POLITE = """
import sys, threading
from pathlib import Path
from outrider.parent import ending_with_parent, exit_on_sigterm
folder, name = Path(sys.argv[1]), sys.argv[2]
with exit_on_sigterm(), ending_with_parent(folder, folder / name):
    (folder / name).touch()
    print("up", flush=True)
    threading.Event().wait(60)
"""
# Deaf to SIGTERM: ended by the watcher.
DEAF = """
import signal, sys, threading
from pathlib import Path
from outrider import parent
parent.GRACE_S = 0.1
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder, name = Path(sys.argv[1]), sys.argv[2]
with parent.ending_with_parent(folder, folder / name):
    (folder / name).touch()
    print("up", flush=True)
    threading.Event().wait(60)
"""


def start(code: str, folder: Path, name: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def orphan(process: subprocess.Popen[bytes]) -> None:
    """What the system does to the pipe when the parent dies."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait(WAIT_S)
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("code", [POLITE, DEAF], ids=["polite", "deaf"])
def test_orphan_ends_and_cleans_up(tmp_path: Path, code: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    orphan(start(code, folder, "one.sock"))
    assert not folder.exists()


def test_the_last_orphan_removes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    first, second = start(POLITE, folder, "one.sock"), start(POLITE, folder, "two.sock")
    orphan(first)
    assert sorted(path.name for path in folder.iterdir()) == ["two.sock"]
    orphan(second)
    assert not folder.exists()


def test_stopped_by_its_parent_it_leaves_the_folder_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    process = start(POLITE, folder, "one.sock")
    process.terminate()
    assert process.wait(WAIT_S) == 143
    assert folder.exists()
    orphan(process)


def test_sigterm_unwinds_and_the_old_handler_comes_back() -> None:
    import os
    import signal

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, exit_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


NATIVE = """
import logging, sys, threading
from outrider.parent import end_now
logging.basicConfig(stream=sys.stderr, format="%(message)s")
threading.Thread(target=threading.Event().wait).start()
logging.warning("last words")
sys.stdout.write("said")
end_now()
"""


def test_a_process_may_end_at_once_whatever_runs_and_loses_no_words() -> None:
    ended = subprocess.run([sys.executable, "-c", NATIVE], capture_output=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"said", b"last words\n")
