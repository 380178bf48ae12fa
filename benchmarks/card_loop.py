"""What drafts gain where steps are a card's: real loop, controller and proposers, no model.

    python -m benchmarks.card_loop TRAFFIC --clients 8,32 --scale 4

TRAFFIC has a JSON object a line with `prompt_token_ids` and `output_token_ids`. Plain decoding and
decoding with drafts take turns, so that a host that slows down slows both. It finds what the host
makes of a step of a few milliseconds without a card; a card's own figures are gpu.py's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.gpu_options import names, numbers
from benchmarks.gpu_trace_load import Load, proposers, wait_connected
from benchmarks.paced_card import PacedCard
from outrider import garbage, turns
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.scheduler import Scheduler

VOCABULARY = 49_152
MAX_MODEL_LEN = 4096
K = 8
# As `build.py` measures them on a card.
_SEQUENCES, _ROWS, _CONTEXT = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 3, 5, 9), 256


def costs_of(card: PacedCard) -> CostTable:
    """What a verifier would have measured at its start."""
    table: CostTable | None = None
    for sequences in _SEQUENCES:
        profile = {n * sequences: card.step_seconds(sequences, n * sequences) for n in _ROWS}
        if table is None:
            table = CostTable.from_profile(profile, _CONTEXT)
        else:
            table.add(sequences, profile, sequences * _CONTEXT)
    assert table is not None
    return table


@contextmanager
def core_over(card: PacedCard, pool: ProposerPool, sequences: int) -> Iterator[Core]:
    """The verifier's core over the paced card."""
    controller = Controller(K, costs_of(card), plain_share=None)
    scheduler = Scheduler(
        card.cache,
        controller,
        num_speculative_tokens=K,
        max_num_seqs=sequences,
        max_num_batched_tokens=8192,
        max_waiting=1024,
        prefill_stall_s=1.0,
    )
    core = Core(card, scheduler, controller, pool, max_waiting=1024, speculative=True)
    try:
        yield core
    finally:
        core.shutdown()


def read(path: Path) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, answer ids) of each line. Raises ValueError naming a line without them."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append((row["prompt_token_ids"], row["output_token_ids"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number}: it must be an object with prompt_token_ids and "
                "output_token_ids"
            ) from error
    if not found:
        raise ValueError(f"{path} has no recorded answer")
    return found


def speed(load: Load, seconds: float, settle: float) -> tuple[float, float]:
    """Tokens a second, and tokens that a drafted round accepted, of a load for so many seconds."""
    with load:
        load.wait_until_decoding(4)
        time.sleep(settle)
        before, began = load.counts, time.perf_counter()
        time.sleep(seconds)
        now, took = load.counts.since(before), time.perf_counter() - began
        load.check()
    return now.tokens / took, now.accepted / max(now.rounds, 1)


def run(options: argparse.Namespace) -> None:
    recorded = read(options.traffic)
    prompts = [prompt for prompt, _ in recorded]
    turns.be_short()
    with tempfile.TemporaryDirectory() as logs:
        for method in options.methods:
            with proposers([method], K, Path(logs)) as addresses:
                for clients in options.clients:
                    _one(options, recorded, prompts, method, addresses, clients)


def _one(
    options: argparse.Namespace,
    recorded: Sequence[tuple[list[int], list[int]]],
    prompts: Sequence[list[int]],
    method: str,
    addresses: Sequence[str],
    clients: int,
) -> None:
    card = PacedCard(
        recorded, clients, options.scale, vocabulary=VOCABULARY, max_model_len=MAX_MODEL_LEN
    )
    hello = HelloParameters(
        verifier_instance_id="card_loop",
        vocabulary_fingerprint="00",
        vocabulary_size=VOCABULARY,
        eos_token_ids=(0,),
        max_sequences=clients,
        num_speculative_tokens=K,
        context_limit=MAX_MODEL_LEN,
    )
    pool = ProposerPool(addresses, hello, 0.020 * options.scale)
    wait_connected(pool, len(addresses))
    ratios, plains = [], []
    with core_over(card, pool, clients) as core:
        garbage.settle()
        for turn in range(options.turns):
            found = {}
            for speculating in (False, True) if turn % 2 else (True, False):
                edge = options.edge_ms * 1e-3 * options.scale
                load = Load(core, prompts, clients, 0.0, options.new_tokens, speculating, edge)
                found[speculating] = speed(load, options.seconds, options.settle)
            ratios.append(found[True][0] / found[False][0])
            plains.append(found[False][0] * options.scale)
            state = core.stats().speculation_state
            print(
                f"{method}, {clients} clients, turn {turn + 1}: {ratios[-1]:.3f} of plain, "
                f"{found[True][1]:.2f} accepted a drafted round; {state[:90]}",
                flush=True,
            )
    print(
        f"== {method}, {clients} clients: {median(ratios):.3f} of plain "
        f"({min(ratios):.3f} to {max(ratios):.3f}); plain {median(plains):.0f} tokens a second "
        "on the card's clock",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.card_loop")
    add = parser.add_argument
    add("traffic", type=Path, help="recorded answers")
    add("--methods", type=names, default=["ngram", "suffix"])
    add("--clients", type=numbers(int), default=[1, 8, 32])
    add("--scale", type=float, default=4.0, help="how much slower than the card")
    add("--seconds", type=float, default=6.0, help="of each turn of plain decoding or drafts")
    add("--settle", type=float, default=1.0, help="before that")
    add("--turns", type=int, default=3)
    add("--new-tokens", type=int, default=128)
    add("--edge-ms", type=float, default=0.5, help="of each request, by the card's clock")
    run(parser.parse_args(sys.argv[1:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
