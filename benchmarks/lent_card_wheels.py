"""Which wheels a machine with a card lacks that has torch of another release and transformers.

    python -m benchmarks.lent_card_wheels

Knows what is installed here, and what such a machine is known to have. Prints a requirement a line:
all that Outrider needs, in the versions of this environment.
"""

from __future__ import annotations

import re
from importlib import metadata

# What comes with torch and transformers, there in versions of their own.
THERE = frozenset(
    (
        *("numpy", "transformers", "tokenizers", "safetensors", "huggingface-hub", "hf-xet"),
        *("sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock"),
        *("setuptools", "regex", "tqdm", "packaging", "requests", "urllib3"),
        *("charset-normalizer", "accelerate"),
    )
)
# Triton by the release of torch whose CUDA build asks for it; a CPU build does without.
TRITON = {"2.13.0": "3.7.1"}
# For the model that is sent.
BESIDE = ("gguf",)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(package: str) -> dict[str, str]:
    """Versions by names: `package`'s requirements and theirs, without those that are there."""
    found: dict[str, str] = {}
    waiting = [package, *BESIDE]
    while waiting:
        name = canonical(waiting.pop())
        if name in found or name in THERE:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # Of another platform, or an extra that nobody asked for.
            continue
        found[name] = distribution.version.partition("+")[0]
        for line in distribution.requires or ():
            requirement, _, marker = line.partition(";")
            # gguf's own are for scripts that are not run.
            if "extra" not in marker and name != "gguf":
                match = _NAME.match(requirement)
                assert match is not None
                waiting.append(match.group())
    del found[canonical(package)]
    found["triton"] = TRITON[found["torch"]]
    return found


def main() -> int:
    for name, version in sorted(needed("outrider").items()):
        print(f"{name}=={version}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
