"""docs/regressions.md names tests that exist, and every test of this folder."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
HERE = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "regressions.md"

_NAMED = re.compile(r"`(?:(?P<file>[\w/]+\.py)::)?(?P<test>test_\w+)(?:\[(?P<case>[^\]]+)\])?`")
_SECTION = re.compile(r"^## .*\(`(?P<file>test_\w+\.py)`\)$", re.MULTILINE)


@cache
def named_in(file: Path) -> frozenset[str]:
    """Names of the test functions of a file, those in classes too."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(f.name for f in functions if f.name.startswith("test_"))


def own_files() -> list[Path]:
    return [file for file in sorted(HERE.glob("test_*.py")) if file != Path(__file__)]


def sections() -> dict[str, str]:
    """The text of each section, by the file it names; of the last one without a file by ''."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=## )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        match = _SECTION.match(part.split("\n", 1)[0])
        found[match["file"] if match else ""] = part
    return found


def test_every_test_that_the_page_names_exists() -> None:
    own = {name: file for file in own_files() for name in named_in(file)}
    missing = []
    for section, text in sections().items():
        for match in _NAMED.finditer(text):
            if match["file"]:
                file = TESTS / match["file"]
            elif section:
                file = HERE / section
            else:
                file = own.get(match["test"], HERE / "nowhere")
            if not _exists(file, match["test"], match["case"]):
                missing.append(f"{section}: {match[0]}")
    assert not missing


def _exists(file: Path, name: str, case: str | None) -> bool:
    if not file.is_file() or name not in named_in(file):
        return False
    return case is None or f'"{case}"' in file.read_text(encoding="utf-8")


def test_the_page_names_every_test_of_this_folder() -> None:
    by_file = sections()
    assert set(by_file) == {file.name for file in own_files()} | {""}
    for file in own_files():
        named = {m["test"] for m in _NAMED.finditer(by_file[file.name]) if not m["file"]}
        assert named_in(file) - named == set()


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    reports = [row for row in rows if not row.startswith(("| report |", "| situation |"))]
    assert len(reports) > 70
    assert [row for row in reports if not _NAMED.search(row)] == []


def test_every_test_of_this_folder_says_what_was_seen() -> None:
    for file in own_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert not node.name.startswith("test_") or ast.get_docstring(node), node.name
