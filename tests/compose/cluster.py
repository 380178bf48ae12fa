"""The running compose project as a test sees it: containers to list, ask, kill and count."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 420
# Profile gpu for a machine without a card.
_GPU = ("-f", str(ROOT / "tests/compose/gpu-on-cpu.yml"), "--profile", "gpu")

_OPEN_STREAMS = """
import grpc
from speculation.v1 import proposer_pb2, proposer_pb2_grpc
with grpc.insecure_channel("127.0.0.1:50052") as channel:
    stub = proposer_pb2_grpc.ProposerServiceStub(channel)
    print(stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest(), timeout=5).open_streams)
"""

_RUNNING_REQUESTS = """
import grpc
from speculation.v1 import verifier_pb2, verifier_pb2_grpc
with grpc.insecure_channel("127.0.0.1:50051") as channel:
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    print(stub.GetInfo(verifier_pb2.GetInfoRequest(), timeout=5).running_requests)
"""

# The service is the child of the container's init, which cannot be killed from inside.
_CRASH = """
import os, pathlib, signal
me = os.getpid()
for status in pathlib.Path("/proc").glob("[0-9]*/status"):
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    if lines["PPid"].strip() == "1" and int(lines["Pid"]) != me:
        os.kill(int(lines["Pid"]), signal.SIGKILL)
"""


def compose(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """The standard output of `docker compose ARGUMENTS`. Raises RuntimeError with its error."""
    command = ["docker", "compose", "--project-directory", str(ROOT)]
    command += ["-f", str(ROOT / "docker-compose.yml"), *arguments]
    return _run(command, timeout_s)


def containers(service: str) -> list[str]:
    """The names of a service's running containers, in order of their numbers."""
    lines = compose("ps", "--format", "json", service).splitlines()
    found = [json.loads(line) for line in lines if line.strip()]
    names = [str(entry["Name"]) for entry in found if entry["State"] == "running"]
    return sorted(names, key=lambda name: int(name.rpartition("-")[2]))


def scale(**counts: int) -> None:
    """Run so many of each service (`_` for `-`), leaving those that run alone; all healthy."""
    options = [f"--scale={name.replace('_', '-')}={count}" for name, count in counts.items()]
    compose("up", "-d", "--no-build", "--no-recreate", "--wait", "--wait-timeout", "400", *options)


def gpu_profile_up() -> None:
    """Run the verifier of profile gpu, its draft model first, instead of the other verifiers."""
    compose(
        *_GPU,
        "up",
        "-d",
        "--no-build",
        "--no-recreate",
        "--wait",
        "--wait-timeout",
        "400",
        "--scale=verifier=0",
        "--scale=proposer-ngram=2",
    )


def gpu_profile_down() -> None:
    """End and remove them."""
    compose(*_GPU, "rm", "--stop", "--force", "verifier-gpu", "proposer-draft-model")


def python_in(container: str, code: str) -> str:
    """Run a program in a container as the user that its service has."""
    return _run(["docker", "exec", container, "python", "-c", code], 60).strip()


def inspect(container: str) -> dict[str, Any]:
    """What the engine knows of a container."""
    (found,) = json.loads(_run(["docker", "inspect", container], 60))
    return dict(found)


def engine() -> dict[str, Any]:
    """What the engine says of itself, for instance which limits its kernel can set."""
    return dict(json.loads(_run(["docker", "info", "--format", "{{json .}}"], 60)))


def open_streams(proposer: str) -> int:
    """How many verifiers are attached to the proposer in a container."""
    return int(python_in(proposer, _OPEN_STREAMS))


def running_requests(verifier: str) -> int:
    """How many requests the verifier in a container decodes."""
    return int(python_in(verifier, _RUNNING_REQUESTS))


def crash(container: str) -> None:
    """Kill -9 the service's process, as the out-of-memory killer would."""
    python_in(container, _CRASH)


def kill(container: str) -> None:
    """Kill -9 the whole container; nothing starts it again."""
    _run(["docker", "kill", "--signal", "KILL", container], 60)


def stopping(container: str) -> subprocess.Popen[bytes]:
    """Begin to stop a container with SIGTERM; the process ends when it has ended."""
    command = ["docker", "stop", "--time", "100", container]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def logs() -> str:
    """The last lines of every container."""
    return compose(*_GPU, "logs", "--no-color", "--tail", "40")


def _run(command: Sequence[str], timeout_s: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout
