"""Writes the requirement list of each container image: what its service imports, and no more.

Knows how to follow imports through Outrider's packages (also those inside functions), and
pyproject.toml's dependencies. The lists are checked in, so that an image is built without this; a
test compares them.

    python deploy/requirements.py
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "outrider": ROOT,
    "proposer_service": ROOT,
    "verifier_service": ROOT,
    "gateway": ROOT,
    "speculation": ROOT / "protos",
}


@dataclass(frozen=True, slots=True)
class Service:
    """An image: the modules it runs, and what these use without importing it themselves.

    `without` are packages of ours that this image never runs.
    """

    name: str
    roots: tuple[str, ...]
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


SERVICES = (
    Service("gateway", ("outrider.commands.gateway", "outrider.health")),
    Service(
        "proposer",
        ("outrider.commands.proposer", "outrider.health"),
        # A draft model runs in the image proposer-model, which is the verifier's for GPUs.
        without=("proposer_service.draft_model",),
    ),
    Service(
        "verifier",
        ("outrider.commands.verifier", "outrider.commands.models", "outrider.health"),
        # transformers loads large models and renders chat templates with them.
        beside=("accelerate", "jinja2"),
    ),
)


def requirements(service: Service) -> list[str]:
    """The dependencies of pyproject.toml that a service needs, as they are written there."""
    declared = {_distribution(line): line for line in _dependencies()}
    owners = importlib.metadata.packages_distributions()
    # The command line imports every subcommand's module, but not what these import when they run.
    modules = _reached(service.roots, deep=True, without=service.without)
    modules |= _reached(("outrider.cli",), deep=False)
    imported = {name.partition(".")[0] for name in modules}
    wanted = {
        _distribution(distribution) for name in imported for distribution in owners.get(name, ())
    }
    wanted.update(service.beside)
    return sorted(line for name, line in declared.items() if name in wanted)


def text(service: Service) -> str:
    """The list as it is checked in."""
    lines = [
        f"# What the {service.name}'s image needs of pyproject.toml's dependencies.",
        "# Made by deploy/requirements.py.",
        *requirements(service),
    ]
    return "\n".join(lines) + "\n"


def path(service: Service) -> Path:
    return ROOT / "deploy" / f"requirements-{service.name}.txt"


def _dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def _distribution(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def _reached(roots: tuple[str, ...], *, deep: bool, without: tuple[str, ...] = ()) -> set[str]:
    """All modules that importing `roots` imports, or with `deep` running them, others' too."""
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in reached or any(f"{name}.".startswith(f"{part}.") for part in without):
            continue
        reached.add(name)
        if name.partition(".")[0] not in PACKAGES:
            continue
        # A module is imported with the packages above it.
        waiting.extend(name.rpartition(".")[:1])
        source = _source(name)
        if source is not None:
            waiting.extend(_imports(ast.parse(source.read_text()), deep=deep))
    return reached - {""}


def _imports(node: ast.AST, *, deep: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
            for alias in child.names:
                if _source(f"{child.module}.{alias.name}") is not None:
                    yield f"{child.module}.{alias.name}"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        elif deep or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(child, deep=deep)


def _source(module: str) -> Path | None:
    folder = PACKAGES.get(module.partition(".")[0])
    if folder is None:
        return None
    base = folder.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


if __name__ == "__main__":
    for each in SERVICES:
        path(each).write_text(text(each))
