"""Server-sent events out of a stream of bytes.

Knows the framing (lines, `data:`, blank lines); does not know what the data says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each event, as soon as its closing blank line is there.

    An event whose end never came is left out. Raises UnicodeDecodeError for bytes that are not
    UTF-8.
    """
    rest = b""
    data: list[bytes] = []
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data).decode()
                data = []
