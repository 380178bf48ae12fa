"""A wheel holds all of the program: an editable installation hides what it lacks."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = ("outrider", "proposer_service", "verifier_service", "gateway")


def test_every_package_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = {
        name for name in project["tool"]["setuptools"]["packages"] if "speculation" not in name
    }
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in TOP
        for path in (ROOT / top).rglob("*.py")
    }
    assert found == listed
