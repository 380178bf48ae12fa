"""A wheel that holds one file, as the model wheels on the package index do."""

from __future__ import annotations

import zipfile
from pathlib import Path

NAME, VERSION = "outrider-tiny-model", "1.0"
REQUIREMENT = f"{NAME}=={VERSION}"
MEMBER = "outrider_tiny_model/tiny.gguf"


def write_wheel(folder: Path, content: bytes) -> Path:
    """A wheel that pip accepts, with `content` as its MEMBER."""
    path = folder / f"outrider_tiny_model-{VERSION}-py3-none-any.whl"
    info = f"outrider_tiny_model-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path
