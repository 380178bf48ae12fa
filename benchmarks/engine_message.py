"""Microseconds that a step's outputs cost on their way between the two processes.

Knows the ways to encode them; what travels is `verifier_service.engine_process.wire`'s.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

from outrider.acceptance import Round
from verifier_service.engine_process import wire
from verifier_service.messages import Output

SEQUENCES = 128
_REPEATS, _TIMES = 15, 20


def outputs(sequences: int = SEQUENCES) -> list[tuple[int, Output]]:
    """A step that verified four drafts of every sequence."""
    return [
        (
            number,
            Output(
                token_ids=(number, 5, 7),
                round=Round(
                    base=10 + number,
                    offered=4,
                    drafted=4,
                    accepted=2,
                    emitted=3,
                    proposer="ngram",
                    draft_wait_ns=1_234_567,
                    verify_ns=5_555_555,
                    draft_token_ids=(number, 5, 9, 8),
                ),
            ),
        )
        for number in range(sequences)
    ]


def measure(sequences: int = SEQUENCES) -> dict[str, Any]:
    """Microseconds to encode and to decode: as it is done, and as pickled dataclasses."""
    step = outputs(sequences)
    packed = wire.encode_report(wire.Report(step))
    plain = pickle.dumps(step, 5)
    return {
        "sequences": sequences,
        "bytes": len(packed),
        "encode_us": _us(lambda: wire.encode_report(wire.Report(step))),
        "decode_us": _us(lambda: wire.decode_report(packed)),
        "dataclasses_bytes": len(plain),
        "dataclasses_encode_us": _us(lambda: pickle.dumps(step, 5)),
        "dataclasses_decode_us": _us(lambda: pickle.loads(plain)),
    }


def lines(measured: dict[str, Any]) -> list[str]:
    """The same in Markdown."""
    return [
        f"One message with the outputs of a step of {measured['sequences']} sequences, "
        "four drafts each, best of many:",
        "",
        "| | encode, µs | decode, µs | bytes |",
        "|---|---:|---:|---:|",
        f"| fields as tuples, pickled | {measured['encode_us']:.0f} "
        f"| {measured['decode_us']:.0f} | {measured['bytes']} |",
        f"| dataclasses, pickled | {measured['dataclasses_encode_us']:.0f} "
        f"| {measured['dataclasses_decode_us']:.0f} | {measured['dataclasses_bytes']} |",
    ]


def _us(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        for _ in range(_TIMES):
            call()
        best = min(best, (time.perf_counter() - begun) / _TIMES)
    return best * 1e6
