"""How every Outrider process logs: one line an event, to standard error.

Knows the line's shape and the level names; does not know who logs what.
"""

from __future__ import annotations

import logging
import sys
import time

LEVELS = ("debug", "info", "warning", "error")

# Libraries that say more at info than a service's operator wants to read.
_CHATTY = ("httpx", "httpcore", "urllib3", "filelock", "huggingface_hub", "transformers", "uvicorn")


class _LineFormatter(logging.Formatter):
    """`2026-11-29T12:00:00.123Z info outrider.supervisor: message`, newlines kept readable."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}: "
        text = head + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def configure(level: str) -> None:
    """Send the process's logs of `level` (one of LEVELS) and above to standard error.

    Raises ValueError for another level. Replaces handlers that were set before, so that calling it
    again changes the level only.
    """
    if level not in LEVELS:
        raise ValueError(f"log level: {level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
