"""What the edge does with one output: from the engine's queue to a message's bytes.

Knows answers and who reads them, in an event loop; knows no transport and runs no model. Tokens are
pieces of a byte-level vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from outrider.acceptance import Round
from verifier_service.accounting import Ledger
from verifier_service.answer import Answer, AnswerOptions
from verifier_service.detokenizer import ByteLevelDetokenizer
from verifier_service.handover import Handover
from verifier_service.messages import FinishReason, Output
from verifier_service.token_pieces import TokenTable

# An interval that no answer is as long as: all of it comes in one message.
WHOLE = 1 << 20
# Outputs of an answer; requests that run at once, each with an output in a step.
_OUTPUTS, _REQUESTS = 200, 8


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """Microseconds for each output of a request: streamed token by token, and told at its end."""

    drafted: int
    streamed: float
    whole: float


def read_edge(drafted: int, clock: Callable[[], int], runs: int) -> EdgeReading:
    """Medians over `runs` runs, for outputs of `drafted` accepted drafts and a token."""
    streamed = [asyncio.run(_run(drafted, 1, clock)) for _ in range(runs)]
    whole = [asyncio.run(_run(drafted, WHOLE, clock)) for _ in range(runs)]
    return EdgeReading(drafted, round(median(streamed), 1), round(median(whole), 1))


def outputs(drafted: int) -> list[Output]:
    """An answer's outputs, each of a round that accepted all of its drafts."""
    made = []
    emitted = drafted + 1
    for number in range(_OUTPUTS):
        token_ids = tuple(97 + (number + i) % 26 for i in range(emitted))
        made.append(
            Output(
                token_ids=token_ids,
                round=Round(
                    number * emitted,
                    drafted,
                    drafted,
                    drafted,
                    emitted,
                    "ngram" if drafted else "",
                    "" if drafted else "no draft offered",
                    draft_token_ids=token_ids[:drafted],
                ),
                finish_reason=FinishReason.LENGTH if number == _OUTPUTS - 1 else None,
            )
        )
    return made


async def _run(drafted: int, interval: int, clock: Callable[[], int]) -> float:
    loop = asyncio.get_running_loop()
    handover, ledger = Handover(loop), Ledger(max(drafted, 1))
    pieces = TokenTable(lambda token: bytes([token]))
    answers = [
        Answer(
            AnswerOptions(f"request-{number}", number, stream_interval=interval),
            ledger.open(16),
            detokenizer=ByteLevelDetokenizer(pieces),
            matcher=None,
            abort=_nothing,
        )
        for number in range(_REQUESTS)
    ]
    readers = [asyncio.create_task(_read(answer)) for answer in answers]
    sinks = [handover.sink(answer) for answer in answers]
    scripts = [outputs(drafted) for _ in answers]
    await asyncio.sleep(0)
    began = clock()
    for step in range(_OUTPUTS):
        for sink, script in zip(sinks, scripts, strict=True):
            sink(script[step])
        # The wake-up, then the readers that it woke.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    read = await asyncio.gather(*readers)
    spent = clock() - began
    if min(read) == 0:
        raise RuntimeError("an answer told nothing")
    handover.close()
    return spent / 1e3 / (_OUTPUTS * _REQUESTS)


async def _read(answer: Answer) -> int:
    """Bytes of all messages, as a transport would write them."""
    count = 0
    while (message := await answer.next_message()) is not None:
        count += len(message.SerializeToString())
    return count


def _nothing() -> None:
    return
