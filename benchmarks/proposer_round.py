"""One round to a CPU proposer: a step for many sequences out, their drafts back.

Starts `outrider proposer`'s server in a process of its own, on a Unix socket, opens sequences of a
realistic length and measures rounds as a verifier sees them. Prints JSON. The texts are English
sentences drawn with repetition from a small set, so that most sequences get drafts. Pauses between
rounds stand for the target's forward, in which look-ahead is prepared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
from speculation.v1 import proposer_pb2, proposer_pb2_grpc, types_pb2

from proposer_service.server import run
from proposer_service.settings import ProposerSettings

VOCABULARY = 49_152


def make_text(rng: random.Random, length: int) -> list[int]:
    """Ids that repeat phrases, with Zipf-like words between them."""
    phrases = [[_word(rng) for _ in range(rng.randint(3, 30))] for _ in range(12)]
    ids: list[int] = []
    while len(ids) < length:
        ids += rng.choice(phrases) if rng.random() < 0.6 else [_word(rng) for _ in range(8)]
    return ids[:length]


def _word(rng: random.Random) -> int:
    return min(VOCABULARY - 1, int(rng.paretovariate(0.7)) + 10)


class Verifier:
    """Follows prepared texts: accepts what a draft says right, then commits one token more."""

    def __init__(self, sequences: int, prompt: int, output: int, k: int) -> None:
        rng = random.Random(7)
        self._texts = [make_text(rng, prompt + output) for _ in range(sequences)]
        self._lengths = [prompt] * sequences
        self._prompt = prompt
        self._k = k
        self._step_id = 0
        self.accepted = 0
        self.drafted = 0
        # By sequence: the outcomes that have a block, and the ends that are named, once they are.
        self.ahead: dict[int, set[tuple[int, ...]]] = {}
        self.named: dict[int, set[tuple[int, int]]] = {}
        self.hits = 0
        self.nones = 0

    def open(self) -> Iterator[proposer_pb2.ProposeRequest]:
        """One step for each open, so that the first round is not a burst."""
        for number, text in enumerate(self._texts):
            step = self._step()
            step.step.updates.add(
                sequence_id=number,
                epoch=1,
                open=proposer_pb2.SequenceOpen(
                    token_ids=text[: self._prompt], prompt_length=self._prompt
                ),
            )
            yield step

    def advance(self, blocks: dict[int, tuple[int, ...]]) -> proposer_pb2.ProposeRequest:
        """Verify the blocks and say what became true."""
        step = self._step()
        for number, text in enumerate(self._texts):
            base = self._lengths[number]
            draft = blocks.get(number, ())
            accepted = 0
            while accepted < len(draft) and text[base + accepted] == draft[accepted]:
                accepted += 1
            self.accepted += accepted
            self.drafted += len(draft)
            end = base + accepted + 1
            ids = text[base:end]
            if tuple(ids) in self.ahead.get(number, ()):
                self.hits += 1
            elif number in self.named and (accepted, ids[-1]) not in self.named[number]:
                self.nones += 1
            self._lengths[number] = end
            step.step.updates.add(
                sequence_id=number,
                epoch=1,
                max_draft_tokens=self._k,
                commit=proposer_pb2.SequenceCommit(
                    base_length=base, token_ids=ids, drafted=len(draft), accepted=accepted
                ),
            )
        self.ahead.clear()
        self.named.clear()
        return step

    def look_ahead(self, lookahead: proposer_pb2.Lookahead) -> None:
        """Take what was prepared for the round in flight."""
        for outcome in lookahead.blocks:
            ends = self.ahead.setdefault(outcome.block.sequence_id, set())
            ends.add(tuple(outcome.outcome_token_ids))
        for claim in lookahead.complete:
            self.named[claim.sequence_id] = set(zip(claim.accepted, claim.token_ids, strict=True))

    @property
    def room(self) -> bool:
        """Whether every text has ids left for one more round."""
        return all(
            end + self._k + 1 < len(text)
            for end, text in zip(self._lengths, self._texts, strict=True)
        )

    def _step(self) -> proposer_pb2.ProposeRequest:
        self._step_id += 1
        return proposer_pb2.ProposeRequest(step=proposer_pb2.Step(step_id=self._step_id))


async def measure(address: str, verifier: Verifier, options: argparse.Namespace) -> list[float]:
    """Milliseconds of each round."""
    hello = proposer_pb2.Hello(
        protocol_version=1,
        verifier_instance_id="benchmark",
        vocabulary_fingerprint="benchmark",
        vocabulary_size=VOCABULARY,
        max_sequences=options.sequences,
        max_draft_tokens=options.k,
        accepted_q_forms=[types_pb2.Q_FORM_ONE_HOT],
        first_position=types_pb2.FIRST_POSITION_AFTER_COMMITTED,
    )
    times = []
    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        stub = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
        stream = stub.Propose()
        await stream.write(proposer_pb2.ProposeRequest(hello=hello))
        await stream.read()
        for request in verifier.open():
            await stream.write(request)
            await stream.read()
        blocks: dict[int, tuple[int, ...]] = {}
        reading = asyncio.ensure_future(stream.read())
        while verifier.room:
            request = verifier.advance(blocks)
            begin = time.perf_counter()
            await stream.write(request)
            while (answer := await reading).WhichOneof("message") != "drafts":
                reading = asyncio.ensure_future(stream.read())
            reading = asyncio.ensure_future(stream.read())
            times.append((time.perf_counter() - begin) * 1e3)
            blocks = {b.sequence_id: tuple(b.token_ids) for b in answer.drafts.blocks}
            reading = await _receive_ahead(stream, reading, verifier, options.forward_ms / 1e3)
        await stream.done_writing()
        await reading
    return times[options.warmup :]


async def _receive_ahead(
    stream: Any, reading: asyncio.Future[Any], verifier: Verifier, seconds: float
) -> asyncio.Future[Any]:
    """Take the look-ahead that arrives while the target's forward would run; the next reading."""
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        done, _ = await asyncio.wait({reading}, timeout=left)
        if done:
            verifier.look_ahead(reading.result().lookahead)
            reading = asyncio.ensure_future(stream.read())
    return reading


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure_method(method: str, options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="round") as folder:
        address = f"unix:{Path(folder) / 'p.sock'}"
        settings = ProposerSettings(
            listen=address,
            method=method,  # type: ignore[arg-type]
            prompt_lookup_min=2,
            lookahead=options.lookahead,
            log_level="error",
        )
        process = multiprocessing.get_context("spawn").Process(target=run, args=(settings,))
        process.start()
        try:
            verifier = Verifier(options.sequences, options.prompt, options.output, options.k)
            times = asyncio.run(measure(address, verifier, options))
        finally:
            process.terminate()
            process.join()
    rounds = len(times)
    return {
        "method": method,
        "rounds": rounds,
        "p50_ms": round(statistics.median(times), 3),
        "p99_ms": round(percentile(times, 0.99), 3),
        "drafted_per_sequence": round(verifier.drafted / (rounds * options.sequences), 2),
        "accepted_per_sequence": round(verifier.accepted / (rounds * options.sequences), 2),
        "lookahead_hit_rate": round(verifier.hits / (rounds * options.sequences), 3),
        "lookahead_none_rate": round(verifier.nones / (rounds * options.sequences), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=400, help="ids of each prompt")
    parser.add_argument("--output", type=int, default=200, help="ids committed after it")
    parser.add_argument("--k", type=int, default=8, help="drafts wanted")
    parser.add_argument("--forward-ms", type=float, default=10.0, help="pause between rounds")
    parser.add_argument("--warmup", type=int, default=5, help="rounds that do not count")
    parser.add_argument("--lookahead", action=argparse.BooleanOptionalAction, default=False)
    options = parser.parse_args()
    results = [measure_method(method, options) for method in ("ngram", "suffix")]
    print(json.dumps({"options": vars(options), "results": results}, indent=2))


if __name__ == "__main__":
    main()
