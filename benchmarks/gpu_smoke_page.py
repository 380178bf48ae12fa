"""The page of the GPU smoke runs, made from their JSON reports.

usage: python -m benchmarks.gpu_smoke_page REPORT.json... > docs/benchmarks/gpu_smoke.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

INTRODUCTION = """# Smoke run on a GPU

Whether the engine of the CPU runs unchanged on a GPU, and how fast before any tuning: eager, no
CUDA graphs, no compiled kernels, core and n-gram proposer in one process, drafts verified whenever
offered. The host needs tens of milliseconds to launch a step and the card a few, so these figures
say what is to be gained, not what is to be had.

*Same* counts answers equal, token for token, to plain decoding's in the same run. In bfloat16 the
kernels round by the shape of the batch, and with 8 clients the two runs' batches have other
shapes."""


def page(reports: list[dict]) -> str:  # type: ignore[type-arg]
    lines = [INTRODUCTION]
    for report in reports:
        lines += [
            "",
            f"## {report['label']}",
            "",
            f"{report['device']}, {report['date']}, torch {report['torch']}, transformers "
            f"{report['transformers']}, Python {report['python']}: `{report['command']}`",
            "",
            "| T | clients | method | tokens/s (lowest, highest) | acceptance length | same |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['temperature']:g} | {r['clients']} | {r['method']} | {r['tokens_per_s']} "
            f"({r['lowest']}, {r['highest']}) | {r['acceptance_length']} "
            f"| {r['same']} of {r['answers']} |"
            for r in report["readings"]
        ]
        steps = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in report["step_cost_ms"].items())
        lines += ["", f"Milliseconds of a step by query tokens: {steps}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page([json.loads(Path(path).read_text()) for path in sys.argv[1:]]))
