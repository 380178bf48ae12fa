from __future__ import annotations

from benchmarks.machine import describe_cpu, public_command

CPUINFO = """processor\t: 0
model name\t: Some CPU @ 2 GHz
flags\t\t: fpu avx2 avx512f amx_tile
processor\t: 1
model name\t: Another
"""


def test_cpu_model_and_telling_flags() -> None:
    assert describe_cpu(CPUINFO) == {"cpu": "Some CPU @ 2 GHz", "cpu_flags": "avx2 avx512f"}


def test_the_shown_command_hides_paths() -> None:
    arguments = ["--data", "/home/me/data", "--model=/secret", "--prompts", "2", "--x", '["a b"]']
    shown = public_command("benchmarks.cpu", arguments, {"--data": "DATA", "--model": "MODEL"})
    assert shown == "python -m benchmarks.cpu --data DATA --model=MODEL --prompts 2 --x '[\"a b\"]'"
