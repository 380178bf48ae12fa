"""Server-sent events: the framing of streamed answers.

Knows bytes on the wire; does not know what an event means.
"""

from __future__ import annotations

import json
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"

HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Asks reverse proxies not to hold events back.
    "X-Accel-Buffering": "no",
}

# Some clients split events with str.splitlines, for which these end a line, too.
_LINE_ENDS: Final = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def event(data: dict[str, Any]) -> bytes:
    """One event with `data` as JSON on one line, in UTF-8."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.translate(_LINE_ENDS).encode("utf-8") + b"\n\n"
