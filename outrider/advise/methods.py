"""The model-free methods that are tried, and passes over the traffic that try them.

Knows vLLM's names of their options; knows no text, no costs and no transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider.advise.replay import Tally, replay
from outrider.advise.spool import Spool, TrafficRequest
from proposer_service.proposers.base import Proposer
from proposer_service.proposers.long_ngram import ngram_proposer
from proposer_service.proposers.ngram import check_windows
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.proposers.suffix_options import SuffixOptions

# Called after each request of a pass: requests done in all passes, and how many there are.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    `config` are its keys of a speculative config, but for `num_speculative_tokens`. Where it
    `remembers`, earlier answers shape its drafts, and when these come into memory depends on K:
    each K then needs a pass of its own.
    """

    name: str
    method: str
    config: dict[str, int | float] = field(hash=False)
    make: Callable[[], Proposer] = field(compare=False)
    remembers: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """One method's sums, one tally for each K in rising order.

    `address` is where a live proposer was asked, empty for one in this process.
    """

    name: str
    method: str
    config: dict[str, int | float]
    tallies: tuple[Tally, ...]
    address: str = ""


def ngram(prompt_lookup_min: int, prompt_lookup_max: int) -> Method:
    """n-gram with windows of `prompt_lookup_min` to `prompt_lookup_max`. Raises ValueError."""
    check_windows(prompt_lookup_min, prompt_lookup_max)
    window = f"{prompt_lookup_min}-{prompt_lookup_max}"
    if prompt_lookup_min == prompt_lookup_max:
        window = str(prompt_lookup_min)
    return Method(
        name=f"ngram {window}",
        method="ngram",
        config={"prompt_lookup_min": prompt_lookup_min, "prompt_lookup_max": prompt_lookup_max},
        make=lambda: ngram_proposer(prompt_lookup_min, prompt_lookup_max),
    )


def suffix(options: SuffixOptions) -> Method:
    """Suffix decoding, whose memory of earlier answers is replayed in the file's order."""
    return Method(
        name="suffix",
        method="suffix",
        config={
            "suffix_decoding_max_tree_depth": options.max_tree_depth,
            "suffix_decoding_max_cached_requests": options.max_cached_requests,
            "suffix_decoding_max_spec_factor": options.max_spec_factor,
            "suffix_decoding_min_token_prob": options.min_token_prob,
        },
        make=lambda: SuffixProposer(options),
        remembers=True,
    )


def replay_all(
    methods: Sequence[Method], ks: Sequence[int], traffic: Spool, report: Report
) -> list[Replayed]:
    """Every method at every K (each once, rising), over all of the traffic."""
    passes = sum(len(ks) if method.remembers else 1 for method in methods)
    done = _Progress(report, passes * len(traffic))
    result = []
    for method in methods:
        tallies = tuple(Tally(k) for k in ks)
        groups: Iterable[Sequence[Tally]] = (
            ([tally] for tally in tallies) if method.remembers else (tallies,)
        )
        for group in groups:
            proposer = method.make()
            for number, request in enumerate(done.over(traffic)):
                replay(proposer, group, request, number)
        result.append(Replayed(method.name, method.method, method.config, tallies))
    return result


class _Progress:
    def __init__(self, report: Report, total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0

    def over(self, traffic: Spool) -> Iterator[TrafficRequest]:
        for request in traffic:
            yield request
            self._done += 1
            self._report(self._done, self._total)
