"""How long a layer's attention of few queries takes on this card, by how it is cut and compiled.

Knows the kernel's tuning and contexts as serving has them; needs no model. Prints microseconds a
call, of 32 calls in one CUDA graph, each over a cache of its own that is in no cache of the card's:
`python -m benchmarks.attention_kernel`. What it finds goes to `_TUNED` of paged_triton.py.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from verifier_service.engines.attention import StepLayout, attend_pages

HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 256
LAYERS, TABLE_PAGES, REPLAYS = 32, 16, 7
SEQUENCES, QUERIES = (1, 8, 32, 128), (1, 5, 9)
SHORTEST, MEAN, LONGEST, EVEN = 40, 344, 1800, 512
# Bytes a microsecond that an H200 was seen to read.
_READS = 4.2e6
_SCALE = SIZE**-0.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to cut and compile: as shipped, where nothing else is said."""

    name: str
    programs: int = 8
    least_keys: int = 128
    keys: int = 64
    warps: int = 4
    stages: int = 3
    parts: int | None = None
    counted: bool = True
    shipped: bool = False

    def __call__(self, query: Tensor, pages: tuple[Tensor, Tensor], layout: StepLayout) -> Tensor:
        # Triton is there only where there is a card.
        from verifier_service.engines import paged_triton

        chosen = None
        if not self.shipped:
            chosen = paged_triton.Tuning(
                self.programs, self.least_keys, self.keys, self.warps, self.stages
            )
        assert layout.cu_query is not None and layout.used is not None
        assert layout.table is not None
        return paged_triton.attend(
            query,
            *pages,
            layout.cu_query,
            layout.used,
            layout.table,
            layout.max_query,
            _SCALE,
            tuning=chosen,
            parts=self.parts,
            counted=self.counted,
        )


CANDIDATES = (
    Candidate("1 part, 2 stages", parts=1, stages=2),
    Candidate("1 part", parts=1),
    Candidate("shipped", shipped=True),
    Candidate("4 programs", programs=4),
    Candidate("16 programs", programs=16),
    Candidate("256 keys a part", least_keys=256),
    Candidate("16 prog., 256 keys", programs=16, least_keys=256),
    Candidate("2 stages", stages=2),
    Candidate("4 stages", stages=4),
    Candidate("2 warps", warps=2),
    Candidate("8 warps", warps=8),
    Candidate("128 at once", keys=128),
    Candidate("128, 8 warps", keys=128, warps=8),
    Candidate("added by a kernel", counted=False),
)
TORCH = "torch's kernel"


@dataclass(frozen=True, slots=True)
class Case:
    """A step: queries of each sequence, and contexts as serving has them or all the same."""

    sequences: int
    queries: int
    drawn: bool

    def contexts(self) -> list[int]:
        """Keys of each sequence, its queries among them; the same every time."""
        if not self.drawn:
            return [EVEN] * self.sequences
        if self.sequences == 1:
            return [MEAN]
        generator = np.random.default_rng(self.sequences)
        drawn = SHORTEST + generator.exponential(MEAN - SHORTEST, self.sequences)
        return [int(context) for context in np.minimum(drawn, LONGEST)]

    def reading(self) -> float:
        """Microseconds that reading keys and values takes at least."""
        return sum(self.contexts()) * KV_HEADS * SIZE * 2 * 2 / _READS


CASES = tuple(
    Case(sequences, queries, drawn)
    for drawn in (True, False)
    for queries in QUERIES
    for sequences in SEQUENCES
)
# By row's name and case; missing where a candidate gave something else than torch's kernel.
Times = Mapping[tuple[str, Case], float]


def layout_of(case: Case, device: torch.device) -> StepLayout:
    """As a captured step has it: of one sequence the smallest is one for two."""
    contexts = case.contexts()
    lengths = [case.queries] * case.sequences
    if case.sequences == 1:
        contexts, lengths = [*contexts, 1], [*lengths, 1 if case.queries == 1 else 0]
    table = torch.zeros(len(contexts), TABLE_PAGES, dtype=torch.int32)
    needed = [-(-context // PAGE) for context in contexts]
    generator = torch.Generator().manual_seed(1)
    places = torch.randperm(sum(needed), generator=generator).to(torch.int32).split(needed)
    for row, own in zip(table, places, strict=True):
        row[: len(own)] = own

    def bounds(counts: Sequence[int]) -> Tensor:
        return torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32, device=device)

    return StepLayout(
        torch.empty(0, dtype=torch.int64, device=device),
        cu_query=bounds(lengths),
        cu_key=bounds(contexts),
        used=torch.tensor(contexts, dtype=torch.int32, device=device),
        table=table.to(device),
        max_query=case.queries,
        max_key=TABLE_PAGES * PAGE,
    )


def compile_one(candidate: Candidate, queries: int) -> str:
    """Run once over little, which leaves the compiled kernel on disk; what went wrong, or nothing.

    For a process of its own: compilers of several run side by side.
    """
    device = torch.device("cuda")
    layout = layout_of(Case(1, queries, True), device)
    pages = torch.zeros(2, 3, PAGE, KV_HEADS, SIZE, dtype=torch.bfloat16, device=device)
    query = torch.zeros(queries + 1, HEADS, SIZE, dtype=torch.bfloat16, device=device)
    try:
        candidate(query, (pages[0], pages[1]), layout)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{candidate.name}, {queries} queries: {str(error).splitlines()[0][:70]}"
    return ""


def compile_all() -> list[str]:
    """All candidates that differ in machine code; what went wrong."""
    seen: dict[tuple[object, ...], Candidate] = {}
    for one in CANDIDATES:
        code = (one.keys, one.warps, one.stages, one.parts == 1, one.counted, one.shipped)
        seen.setdefault(code, one)
    work = [(candidate, queries) for candidate in seen.values() for queries in QUERIES]
    workers = min(len(work), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return [said for said in pool.map(compile_one, *zip(*work, strict=True)) if said]


class Card:
    """Caches of all layers, and what is written between two readings so that nothing is cached."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        most = max(sum(-(-keys // PAGE) for keys in case.contexts()) for case in CASES) + 1
        shape = (LAYERS, 2, most, PAGE, KV_HEADS, SIZE)
        pages = torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_()
        self._pages = [(layer[0], layer[1]) for layer in pages]
        self._other = torch.empty(1 << 28, dtype=torch.uint8, device=self.device)
        self._pool = torch.cuda.graph_pool_handle()
        # Graphs share the pool as long as one of them is there.
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def measure(self, case: Case) -> dict[tuple[str, Case], float]:
        """Microseconds a call of all candidates that give what torch's kernel does."""
        layout = layout_of(case, self.device)
        count = int(layout.cu_query[-1]) if layout.cu_query is not None else 0
        query = torch.randn(count, HEADS, SIZE, device=self.device).to(torch.bfloat16)

        def through_torch(query: Tensor, pages: tuple[Tensor, Tensor], at: StepLayout) -> Tensor:
            return attend_pages(query, *pages, at, _SCALE, 0)

        wanted = through_torch(query, self._pages[-1], layout).float()
        times: dict[tuple[str, Case], float] = {}
        everyone: list[tuple[str, Callable[..., Tensor]]] = [(TORCH, through_torch)]
        for name, attend in everyone + [(one.name, one) for one in CANDIDATES]:
            try:
                found = attend(query, self._pages[-1], layout).float()
            except Exception:
                # Too much shared memory: compiling has said so, and the table has a gap.
                continue
            error = (found - wanted).abs().flatten(1).amax(1)
            if bool((error <= 0.03 * wanted.abs().flatten(1).amax(1)).all()):
                times[name, case] = self._time(attend, query, layout)
        return times

    def _time(self, attend: Callable[..., Tensor], query: Tensor, layout: StepLayout) -> float:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(pool=self._pool)
        for pages in self._pages:
            attend(query, pages, layout)
        graph.capture_end()
        self._graphs.append(graph)
        graph.replay()
        events = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._other.zero_()
            begin.record()
            graph.replay()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        spent = [float(begin.elapsed_time(end)) for begin, end in events]
        return statistics.median(spent) * 1e3 / len(self._pages)


def lines(times: Times) -> list[str]:
    """Two tables, the fastest of each column marked, and who is fastest over all by queries."""
    rows = [TORCH, *(candidate.name for candidate in CANDIDATES)]
    written = []
    for drawn, title in ((True, f"contexts {SHORTEST} to {LONGEST}"), (False, f"all {EVEN}")):
        cases = [case for case in CASES if case.drawn is drawn]
        heads = "".join(f"{f'{case.sequences}x{case.queries}':>8}" for case in cases)
        written.append(f"{f'us, {title}':<20}{heads}")
        reading = "".join(f"{case.reading():>7.1f} " for case in cases)
        written.append(f"{'reading, at least':<20}{reading}")
        best = {case: min(times.get((row, case), math.inf) for row in rows) for case in cases}
        for row in rows:
            cells = ""
            for case in cases:
                told = times.get((row, case))
                mark = "*" if told == best[case] else " "
                cells += f"{told:>7.1f}{mark}" if told is not None else f"{'-':>7} "
            written.append(f"{row:<20}{cells}")
        written.append("")
    for queries in QUERIES:
        scores = [(score, row) for row in rows if (score := _score(times, row, queries))]
        first = ", ".join(f"{row} {score:.2f}" for score, row in sorted(scores)[:4])
        written.append(f"of {queries} queries, times as shipped (geometric mean): {first}")
    return written


def _score(times: Times, row: str, queries: int) -> float | None:
    """Over the same shipped; None where a case is missing."""
    ratios = []
    for case in CASES:
        if case.queries == queries:
            mine, shipped = times.get((row, case)), times.get(("shipped", case))
            if mine is None or shipped is None:
                return None
            ratios.append(mine / shipped)
    return statistics.geometric_mean(ratios)


def main() -> None:
    """Compile, measure, print."""
    if not torch.cuda.is_available():
        raise SystemExit("attention is measured on a card, and there is none")
    begun = time.perf_counter()
    for said in compile_all():
        print("did not compile or run:", said)
    compiled = time.perf_counter()
    gc.disable()
    times: dict[tuple[str, Case], float] = {}
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        card = Card()
        for case in CASES:
            times |= card.measure(case)
    print("\n".join(lines(times)))
    measured = time.perf_counter()
    print(f"compiled in {compiled - begun:.0f} s, measured in {measured - compiled:.0f} s")


if __name__ == "__main__":
    main()
