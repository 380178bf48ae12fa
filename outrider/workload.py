"""The label that clients give their requests, so that evidence can be told apart by kind of work.

Knows what a label may be; does not know how it travels.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHARACTERS: Final = 64
# Labels become groups, rows and query parameters: no spaces, nothing that needs quoting.
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+@-]{0,63}")
ALLOWED: Final = f"1 to {MAX_CHARACTERS} letters, digits and ._:/+@-, a letter or digit first"


def is_workload(label: str) -> bool:
    """Whether `label` may name a workload; empty is no label and allowed."""
    return not label or _LABEL.fullmatch(label) is not None
