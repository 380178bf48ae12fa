"""How long a layer's attention of few queries takes on this card, by how it is cut and compiled.

Knows the kernel's tuning and contexts as serving has them; needs no model. Prints microseconds a
call, of 32 calls in one CUDA graph, each over a cache of its own that is in no cache of the card's:
`python -m benchmarks.attention_kernel`. What it finds goes to `_TUNED` of paged_triton.py.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.attention_cases import (
    CANDIDATES,
    CASES,
    KV_HEADS,
    QUERIES,
    SIZE,
    TORCH,
    Candidate,
    Case,
    lines,
)

HEADS, PAGE = 32, 256
LAYERS, TABLE_PAGES, REPLAYS = 32, 16, 7
_SCALE = SIZE**-0.5


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a step's queries and keys are, as `StepLayout` of the engine says it.

    That one brings transformers with it, which processes that only compile would wait for.
    """

    cu_query: Tensor
    cu_key: Tensor
    used: Tensor
    table: Tensor
    max_query: int


# Queries, keys and values of a layer, where they are -> answers.
Attend = Callable[[Tensor, tuple[Tensor, Tensor], Layout], Tensor]


def layout_of(case: Case, device: torch.device) -> Layout:
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

    return Layout(
        cu_query=bounds(lengths),
        cu_key=bounds(contexts),
        used=torch.tensor(contexts, dtype=torch.int32, device=device),
        table=table.to(device),
        max_query=case.queries,
    )


def attend_as(
    candidate: Candidate, query: Tensor, pages: tuple[Tensor, Tensor], layout: Layout
) -> Tensor:
    """Our kernel, cut and compiled as the candidate says."""
    # Triton is there only where there is a card.
    from verifier_service.engines import paged_triton

    chosen = None
    if not candidate.shipped:
        chosen = paged_triton.Tuning(
            candidate.programs,
            candidate.least_keys,
            candidate.keys,
            candidate.warps,
            candidate.stages,
        )
    keys, values = pages
    return paged_triton.attend(
        query,
        keys,
        values,
        layout.cu_query,
        layout.used,
        layout.table,
        layout.max_query,
        _SCALE,
        tuning=chosen,
        parts=candidate.parts,
        counted=candidate.counted,
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
        attend_as(candidate, query, (pages[0], pages[1]), layout)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{candidate.name}, {queries} queries: {type(error).__name__} {str(error)[:60]}"
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
        shape = (int(layout.cu_query[-1]), HEADS, SIZE)
        query = torch.randn(shape, device=self.device).to(torch.bfloat16)
        wanted = _through_torch(query, self._pages[-1], layout).float()
        times: dict[tuple[str, Case], float] = {}
        others: list[tuple[str, Attend]] = [
            (one.name, partial(attend_as, one)) for one in CANDIDATES
        ]
        for name, attend in [(TORCH, _through_torch), *others]:
            try:
                found = attend(query, self._pages[-1], layout).float()
            except Exception:
                # Too much shared memory: compiling has said so, and the table has a gap.
                continue
            error = (found - wanted).abs().flatten(1).amax(1)
            if bool((error <= 0.03 * wanted.abs().flatten(1).amax(1)).all()):
                times[name, case] = self._time(attend, query, layout)
        return times

    def _time(self, attend: Attend, query: Tensor, layout: Layout) -> float:
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


def _through_torch(query: Tensor, pages: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
    from verifier_service.engines.attention import StepLayout, attend_pages

    step = StepLayout(
        layout.used,
        cu_query=layout.cu_query,
        cu_key=layout.cu_key,
        used=layout.used,
        table=layout.table,
        max_query=layout.max_query,
        max_key=TABLE_PAGES * PAGE,
    )
    return attend_pages(query, *pages, step, _SCALE, 0)


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
        # A card that was idle is slow at first.
        card.measure(CASES[-1])
        for case in CASES:
            times |= card.measure(case)
    print("\n".join(lines(times)))
    measured = time.perf_counter()
    print(f"compiled in {compiled - begun:.0f} s, measured in {measured - compiled:.0f} s")


if __name__ == "__main__":
    main()
