"""A verifier over a paced engine, as a thread or a process: `engine_process.py` starts it.

Knows how the two are put together; knows no load.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from benchmarks import paced_engine
from benchmarks.paced_engine import MAX_MODEL_LEN
from outrider import garbage, logs, turns
from verifier_service.attaching import Target
from verifier_service.core import EngineCore
from verifier_service.engine_process.process import EngineProcess
from verifier_service.engine_process.remote_core import start_core
from verifier_service.messages import NoDrafts
from verifier_service.server import start
from verifier_service.settings import VerifierSettings
from verifier_service.text import Text


async def serve(case: str, engine: str, listen: str, model: Path) -> None:
    """Serve until SIGTERM."""
    settings = VerifierSettings(
        model=str(model),
        listen=listen,
        served_model_name="paced",
        max_num_seqs=128,
        max_num_batched_tokens=8192,
        log_level="warning",
        log_stats_interval_s=0.0,
        num_prediction_tokens=0,
    )
    build = f"build_{case}"
    core: EngineCore
    if engine == "process":
        target = Target("paced", "paced", 1, (), MAX_MODEL_LEN)
        name = f"{paced_engine.__name__}:{build}"
        core = start_core(EngineProcess.start(), settings, target, name)
    else:
        core = getattr(paced_engine, build)(settings, NoDrafts())
    running = await start(settings, core=core, text=Text.load(model))
    # As a verifier's own process does.
    garbage.settle()
    turns.be_short()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await running.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paced_verifier")
    parser.add_argument("--case", choices=("decode", "launch"), required=True)
    parser.add_argument("--engine", choices=("thread", "process"), required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    logs.configure("warning")
    asyncio.run(serve(options.case, options.engine, options.listen, options.model))


if __name__ == "__main__":
    main()
