"""The figures of one arm's run, and of two runs compared.

Knows what each figure means; does not know how it is shown. Times in seconds, tokens as counted by
the server.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from outrider.bench.arms import ArmRun
from outrider.bench.drafts import DraftCounts, total
from outrider.bench.load import Block
from outrider.bench.probe import DraftSource
from outrider.bench.records import CountedBy, Record
from outrider.bench.statistics import Ratio, Summary, ratio_of_sums, speed_ratio, summarise

TIMES: Final = ("ttft", "tpot", "itl", "gap", "e2el")
GOODPUT_TIMES: Final = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm. `times` has a summary of each of TIMES, where there was anything to time.

    `duration` is the sum of its blocks' seconds; `drafts` is None where nothing is known;
    `counted_by` is the least sure way in which tokens were counted.
    """

    completed: int
    failed: int
    errors: tuple[tuple[str, int], ...]
    duration: float
    input_tokens: int
    output_tokens: int
    good: int | None
    peak_requests: int
    peak_output_throughput: float
    times: Mapping[str, Summary]
    drafts: DraftCounts | None
    drafts_from: DraftSource
    counted_by: CountedBy

    @property
    def request_throughput(self) -> float:
        return self._rate(self.completed)

    @property
    def output_throughput(self) -> float:
        return self._rate(self.output_tokens)

    @property
    def total_throughput(self) -> float:
        return self._rate(self.output_tokens + self.input_tokens)

    @property
    def goodput(self) -> float | None:
        """Requests a second that kept all limits; None where no limits were given."""
        return None if self.good is None else self._rate(self.good)

    def _rate(self, amount: float) -> float:
        return amount / self.duration if self.duration > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times faster than the baseline; above 1 is faster.

    `throughput` compares output tokens a second, `times` the means of the prompts that both arms
    answered. `same_answers` of `compared` prompts got the same text.
    """

    throughput: Ratio | None
    times: Mapping[str, Ratio]
    same_answers: int
    compared: int


def arm_figures(
    run: ArmRun, percentiles: Sequence[float], goodput: Mapping[str, float] | None = None
) -> ArmFigures:
    """`goodput` has the longest allowed seconds of any of GOODPUT_TIMES."""
    records = run.records
    done = [record for record in records if record.ok]
    errors = Counter(record.error for record in records if not record.ok)
    values: dict[str, list[float]] = {
        "ttft": _known(record.ttft for record in done),
        "tpot": _known(record.tpot for record in done),
        "itl": [itl for record in done for itl in record.itls()],
        "gap": [gap for record in done for gap in record.gaps()],
        "e2el": _known(record.e2el for record in done),
    }
    summaries = {name: summarise(found, percentiles) for name, found in values.items()}
    drafts, drafts_from = _drafts(run, done)
    ways = {record.counted_by for record in done}
    return ArmFigures(
        completed=len(done),
        failed=len(records) - len(done),
        errors=tuple(errors.most_common()),
        duration=math.fsum(block.duration for block in run.blocks),
        input_tokens=sum(record.prompt_tokens for record in done),
        output_tokens=sum(record.output_tokens for record in done),
        good=sum(_keeps(record, goodput) for record in done) if goodput else None,
        peak_requests=max((block.peak for block in run.blocks), default=0),
        peak_output_throughput=max((_peak(block) for block in run.blocks), default=0.0),
        times={name: found for name, found in summaries.items() if found is not None},
        drafts=drafts,
        drafts_from=drafts_from,
        counted_by=next((way for way in reversed(CountedBy) if way in ways), CountedBy.CHUNKS),
    )


def compare(run: ArmRun, baseline: ArmRun, *, seed: int = 0) -> Comparison:
    """`run` against `baseline`, which measured the same blocks of the same prompts."""
    both = list(zip(run.blocks, baseline.blocks, strict=True))
    # Where a request failed, the others had the server to themselves for longer.
    whole = [(mine, theirs) for mine, theirs in both if mine.whole and theirs.whole]
    blocks = [
        (mine.output_tokens, mine.duration, theirs.output_tokens, theirs.duration)
        for mine, theirs in whole or both
    ]
    theirs = {record.index: record for record in baseline.records if record.ok}
    pairs = [
        (record, theirs[record.index])
        for record in run.records
        if record.ok and record.index in theirs
    ]
    reads: dict[str, Callable[[Record], float | None]] = {
        "ttft": lambda record: record.ttft,
        "tpot": lambda record: record.tpot,
        "e2el": lambda record: record.e2el,
    }
    times: dict[str, Ratio] = {}
    for name, read in reads.items():
        known = [(read(other), read(mine)) for mine, other in pairs]
        ratio = ratio_of_sums(
            [(b, m) for b, m in known if b is not None and m is not None],
            units="prompts",
            seed=seed,
        )
        if ratio is not None:
            times[name] = ratio
    return Comparison(
        throughput=speed_ratio(blocks, units="blocks of prompts", seed=seed),
        times=times,
        same_answers=sum(mine.text_digest == other.text_digest for mine, other in pairs),
        compared=len(pairs),
    )


def _drafts(run: ArmRun, done: Sequence[Record]) -> tuple[DraftCounts | None, DraftSource]:
    told = [record.drafts for record in done if record.drafts is not None]
    if told:
        return total(told), DraftSource.RESPONSES
    if run.counted is not None:
        return run.counted, DraftSource.COUNTERS
    return None, DraftSource.NONE


def _keeps(record: Record, limits: Mapping[str, float]) -> bool:
    times = {"ttft": record.ttft, "tpot": record.tpot, "e2el": record.e2el}
    return all((times[name] or 0.0) <= limit for name, limit in limits.items())


def _peak(block: Block) -> float:
    """The most output tokens that came within one of the block's whole seconds."""
    seconds: Counter[int] = Counter()
    for record in block.records:
        for arrival in record.arrivals if record.ok else ():
            seconds[int(arrival.at - block.began)] += arrival.tokens
    return float(max(seconds.values(), default=0))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
