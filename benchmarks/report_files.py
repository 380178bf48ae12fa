"""Where a report is written: its JSON document and the Markdown page beside it.

Knows two files and how to replace them at once, so that a run which is killed while it writes
leaves the earlier report whole.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol


class Report(Protocol):
    """What can be written."""

    def to_json(self) -> dict[str, Any]: ...

    def to_markdown(self) -> str: ...


def write_report(report: Report, out: Path, name: str) -> None:
    """`out`/`name`.json and .md; the folder is made where it is missing."""
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / f"{name}.json", json.dumps(report.to_json(), indent=1) + "\n")
    replace_text(out / f"{name}.md", report.to_markdown())


def replace_text(path: Path, text: str) -> None:
    """Write a file so that readers find either the old text or the new one."""
    written = path.with_name(f".{path.name}.new")
    written.write_text(text)
    os.replace(written, path)
