"""A running n-gram proposer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proposer_service.server import RunningServer, start
from tests.proposer_service.serving import settings_at


@pytest.fixture
async def server(socket_dir: Path) -> AsyncIterator[RunningServer]:
    running = await start(settings_at(socket_dir))
    yield running
    await running.stop()
