"""The images' requirement lists: of pyproject.toml, no more than a service imports, and enough."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements", ROOT / "deploy/requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


lists = load()
SERVICES = {service.name: service for service in lists.SERVICES}


def checked_in(name: str) -> list[str]:
    lines = lists.path(SERVICES[name]).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", SERVICES)
def test_the_list_is_what_the_service_imports(name: str) -> None:
    assert lists.path(SERVICES[name]).read_text() == lists.text(SERVICES[name]), (
        "run: python deploy/requirements.py"
    )


@pytest.mark.parametrize("name", SERVICES)
def test_the_list_is_of_pyprojects_dependencies_as_they_are_there(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(checked_in(name)) <= set(project["dependencies"])


def closure(names: list[str]) -> set[str]:
    """The distributions that installing these installs, here."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    return found


def test_images_without_a_model_have_no_torch_either_by_way_of_others() -> None:
    for name in ("gateway", "proposer"):
        installed = closure(checked_in(name))
        assert not installed & {"torch", "transformers", "triton", "xgrammar"}
    assert "torch" in closure(checked_in("verifier"))


# Refuses what the image would not have, and imports every module of the service.
IMPORT = """
import importlib, importlib.abc, pkgutil, sys
refused, packages, modules, without = (set(part.split(",")) for part in sys.argv[1:])
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is not in this image", name=name)
sys.meta_path.insert(0, Refuse())
for name in sorted(packages):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        left_out = any(part and f"{module.name}.".startswith(f"{part}.") for part in without)
        if not module.name.endswith("__main__") and not left_out:
            importlib.import_module(module.name)
for name in modules:
    importlib.import_module(name)
"""


@pytest.mark.parametrize(
    ("name", "package"), [("gateway", "gateway"), ("proposer", "proposer_service")]
)
def test_every_module_is_imported_with_only_these_installed(name: str, package: str) -> None:
    installed = closure(checked_in(name)) | {"outrider"}
    refused = [
        top
        for top, owners in importlib.metadata.packages_distributions().items()
        if re.fullmatch(r"\w+", top)
        and not installed & {canonicalize_name(owner) for owner in owners}
    ]
    assert "torch" in refused
    modules = ["outrider.cli", "outrider.health", f"outrider.commands.{name}"]
    lists_of_names = [refused, [package], modules, SERVICES[name].without]
    command = [sys.executable, "-c", IMPORT, *map(",".join, lists_of_names)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_draft_models_image_has_what_a_draft_model_needs() -> None:
    """It is the verifier's image for GPUs, run as a proposer."""
    drafting = lists.Service("proposer-model", SERVICES["proposer"].roots)
    needed = set(lists.requirements(drafting))
    assert any(line.startswith("torch==") for line in needed)
    assert needed <= set(checked_in("verifier"))
    assert set(checked_in("proposer")) < needed
