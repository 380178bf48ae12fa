"""A stack for each test, and one for a module whose tests compile grammars."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio

from tests.interfaces.stack import Stack, stack


@pytest.fixture
async def running(socket_dir: Path) -> AsyncIterator[Stack]:
    async with stack(socket_dir) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Stack]:
    """What compiles grammars takes a moment to start."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    async with stack(folder) as one:
        yield one
    shutil.rmtree(folder)


@pytest.fixture
def client(running: Stack) -> openai.AsyncOpenAI:
    return running.client


@pytest.fixture
def http(running: Stack) -> httpx.AsyncClient:
    return running.http
