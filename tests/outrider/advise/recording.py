"""The verifier's own loop over the toy target, whose acceptance the replay has to predict.

Everything is real but the model and the transport: scheduler, controller with adaptive
verification off, rejection, and the proposers that the product ships.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.inprocess_source import InprocessSource
from outrider.acceptance import Acceptance
from outrider.advise.spool import Spool, TrafficRequest
from proposer_service.proposers.base import Proposer
from tests.interfaces.stack import KNOWN, Writer, WriterEngine
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.messages import DraftBlock, Output, Request, Sampling
from verifier_service.scheduler import Scheduler

WAIT_S = 20.0
END_ID = byte_level_tokenizer().convert_tokens_to_ids("<|end|>")


@dataclass
class Measured:
    """What the verifier counted, as the replay counts it, and the traffic it left behind."""

    acceptance: Acceptance
    rounds: int
    emitted: int
    traffic: list[TrafficRequest]


class _Settling(InprocessSource):
    """What a proposer's session does behind each answer is done here behind each step."""

    def __init__(self, proposer: Proposer) -> None:
        super().__init__({"method": proposer})
        self._proposer = proposer

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        blocks = super().collect()
        self._proposer.settle()
        return blocks


@contextmanager
def verifier(proposer: Proposer, k: int) -> Iterator[Core]:
    """A core whose every offered draft is verified."""
    engine = WriterEngine(
        Writer.of(KNOWN, len(byte_level_tokenizer())), num_blocks=512, block_size=8
    )
    controller = Controller(k, CostTable.from_profile({1: 1e-3, 33: 2e-3}, 64), adaptive=False)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=k,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_waiting=8,
    )
    source = _Settling(proposer)
    core = Core(engine, scheduler, controller, source, max_waiting=8, speculative=True)
    try:
        yield core
    finally:
        core.shutdown()


def record(
    proposer: Proposer,
    k: int,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float = 0.0,
    max_tokens: int = 24,
    salts: Sequence[str] = ("",),
) -> Measured:
    """Answer the prompts one after the other; salts repeat in turn."""
    measured = Measured(Acceptance(k), 0, 0, [])
    with verifier(proposer, k) as core:
        for number, prompt in enumerate(prompts):
            salt = salts[number % len(salts)]
            outputs = _answer(core, number, list(prompt), salt, temperature, max_tokens)
            ids = [token for output in outputs for token in output.token_ids]
            for output in outputs:
                assert output.round is not None
                if output.round.off_reason == "prefill":
                    continue
                measured.acceptance.add(output.round)
                measured.rounds += 1
                measured.emitted += len(output.token_ids)
            cached = 0 < len(prompt) - 1 <= outputs[-1].cached_prompt_tokens
            measured.traffic.append(
                TrafficRequest(list(prompt), ids, max_tokens, salt, cached=cached)
            )
    return measured


def spool(requests: Sequence[TrafficRequest]) -> Spool:
    filled = Spool()
    for request in requests:
        filled.add(request)
    return filled


def _answer(
    core: Core, number: int, prompt: list[int], salt: str, temperature: float, max_tokens: int
) -> list[Output]:
    outputs: list[Output] = []
    done = threading.Event()

    def sink(output: Output) -> None:
        assert not output.error, output.error
        outputs.append(output)
        if output.finish_reason is not None:
            done.set()

    sampling = Sampling(
        temperature=temperature,
        seed=number,
        max_tokens=max_tokens,
        stop_token_ids=frozenset([END_ID]),
    )
    core.submit(Request(str(number), prompt, sampling, cache_salt=salt), sink)
    assert done.wait(WAIT_S), "the request was not answered"
    return outputs
