"""Proposers in processes' stead: served over Unix sockets from a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proposer_service.server import start
from proposer_service.settings import ProposerSettings

WAIT_S = 20.0


@contextmanager
def proposer_at(folder: Path, **options: Any) -> Iterator[str]:
    """A running proposer's address."""
    address = f"unix:{folder}/{options['method']}.sock"
    settings = ProposerSettings(listen=address, **options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = asyncio.run_coroutine_threadsafe(start(settings), loop).result(WAIT_S)
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(running.stop(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()
