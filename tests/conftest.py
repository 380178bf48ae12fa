"""Fixtures and options that tests of several packages share."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.ports import unclaimed_port


def pytest_configure(config: pytest.Config) -> None:
    """Workers share the cores: torch, which is not loaded yet, shall use one of them in each."""
    if hasattr(config, "workerinput"):
        os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest comes first where workers share the tests, so that none ends alone."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, pulled if it is not here."""
    from outrider.checkpoints import ModelStore
    from outrider.config import cache_directory

    return ModelStore(cache_directory()).pull("smollm2-135m", lambda stage, done, total: None)


@pytest.fixture(scope="session", autouse=True)
def no_evidence_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that tests start keep their evidence apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_ends_of_http_servers() -> Iterator[None]:
    """uvicorn looks each 0.1 s, twice, whether it may end: longer than most tests of it take."""
    import uvicorn.server

    hasty = ModuleType("asyncio")
    vars(hasty).update(vars(asyncio), sleep=lambda seconds: asyncio.sleep(seconds / 20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", hasty)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """typer makes every subcommand anew, 0.1 s of work, whenever the command line is run."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A private folder whose path is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def socket_address(socket_dir: Path) -> str:
    """A gRPC address on which nothing listens yet."""
    return f"unix:{socket_dir / 's.sock'}"


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    return unclaimed_port()


@pytest.fixture(autouse=True)
def no_logs_into_another_test() -> Iterator[None]:
    """What a test configured writes to its own captured stream, which is closed behind it."""
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
