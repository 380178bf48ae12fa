"""Requests that give the page something to show."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.interfaces.stack import MODEL, Stack


async def complete(running: Stack, request_id: str = "", **options: Any) -> Any:
    """One completion with rounds in which drafts are accepted and rejected."""
    extra = {"ignore_eos": True, **({"request_id": request_id} if request_id else {})}
    return await running.client.completions.create(
        **{"model": MODEL, "prompt": "the cat", "max_tokens": 60, "temperature": 0, **options},
        extra_body=extra,
    )


async def several(running: Stack, count: int = 3) -> None:
    await asyncio.gather(*(complete(running) for _ in range(count)))


async def recorded(running: Stack, request_id: str) -> None:
    """Wait until the evidence has the request: spans arrive a moment after answers."""
    for _ in range(1200):
        if (await running.http.get(f"/v1/requests/{request_id}")).status_code == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"no record of {request_id} came within a minute")
