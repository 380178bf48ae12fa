"""One stack for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.interfaces.stack import Stack, stack


@pytest.fixture
async def running(socket_dir: Path) -> AsyncIterator[Stack]:
    async with stack(socket_dir) as one:
        yield one


@pytest.fixture
def client(running: Stack) -> openai.AsyncOpenAI:
    return running.client


@pytest.fixture
def http(running: Stack) -> httpx.AsyncClient:
    return running.http
