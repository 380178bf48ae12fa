"""How much of what a proposer is asked its look-ahead has answered, on recorded answers.

    python -m benchmarks.lookahead_cover TRAFFIC --method suffix --at-once 8

TRAFFIC has a JSON object a line with `prompt_token_ids` and `output_token_ids`. Each answer is
decoded again as a verifier would that verifies all drafts; every look-ahead has the time that it
needs, or with `--likely` just enough for what it takes to be likely, as where steps are short.
Prints JSON; no figure in it is a time.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from proposer_service.proposers.base import NO_DRAFT, Complete, Draft, Outcome, Pause, Proposer
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer


@dataclass(slots=True)
class Answer:
    """A recorded text of which `length` ids are committed."""

    ids: list[int]
    length: int
    draft: Draft = NO_DRAFT

    def accepted(self, draft: Sequence[int]) -> int:
        """How many drafts the text agrees with; the last id is never a draft."""
        truth = self.ids[self.length : -1]
        pairs = zip(draft, truth, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class Prepared:
    """What look-ahead said of one sequence; `ends` None: it made no claim."""

    drafts: dict[tuple[int, ...], Draft]
    ends: set[tuple[int, int]] | None

    @classmethod
    def of(cls, proposer: Proposer, number: int, draft: Draft, k: int, likely: bool) -> Prepared:
        prepared = cls({}, None)
        for item in proposer.lookahead(number, draft, k):
            if likely and item is Pause.UNLIKELY:
                break
            if isinstance(item, Complete):
                prepared.ends = set(item.ends)
            elif isinstance(item, Outcome) and item.draft.ids:
                prepared.drafts[item.ids] = item.draft
        return prepared


class Cover:
    """Counts of asks, by what look-ahead had said, and of drafts accepted behind them."""

    def __init__(self, proposer: Proposer, k: int, likely: bool = False) -> None:
        self._proposer = proposer
        self._k = k
        self._likely = likely
        self.asks: Counter[str] = Counter()
        self.blocks = 0
        self.accepted: Counter[str] = Counter()
        # Accepted drafts that nobody waited for, by the match that they rested on.
        self.left_out: Counter[int] = Counter()

    def round(self, answers: dict[int, Answer]) -> None:
        """One round of all; those that end are taken out."""
        proposer, k = self._proposer, self._k
        for number, answer in answers.items():
            answer.draft = proposer.propose(number, k)
        proposer.settle()
        prepared = {
            i: Prepared.of(proposer, i, a.draft, k, self._likely) for i, a in answers.items()
        }
        self.blocks += sum(len(each.drafts) for each in prepared.values())
        for number, answer in list(answers.items()):
            end = answer.length + answer.accepted(answer.draft.ids) + 1
            new = tuple(answer.ids[answer.length : end])
            proposer.extend(number, new)
            answer.length = end
            if end >= len(answer.ids) - 1:
                proposer.close(number, True)
                del answers[number]
            else:
                self._judge(number, answer, prepared[number], new)

    def _judge(
        self, number: int, answer: Answer, prepared: Prepared, outcome: tuple[int, ...]
    ) -> None:
        later = self._proposer.propose(number, self._k)
        asked = answer.accepted(later.ids)
        self.accepted["asked"] += asked
        if outcome in prepared.drafts:
            self.asks["hit"] += 1
            self.accepted["ahead"] += answer.accepted(prepared.drafts[outcome].ids)
        elif prepared.ends is None or (len(outcome) - 1, outcome[-1]) in prepared.ends:
            self.asks["waited for"] += 1
            self.accepted["ahead"] += asked
        else:
            self.asks["none"] += 1
            self.left_out[later.match_length] += asked


def cover(
    proposer: Proposer,
    answers: Iterator[tuple[list[int], list[int]]],
    k: int,
    at_once: int,
    likely: bool = False,
) -> dict[str, object]:
    """Shares of asks and sums of accepted drafts over (prompt, output) pairs of ids."""
    counted = Cover(proposer, k, likely)
    numbered = enumerate(answers)
    open_: dict[int, Answer] = {}
    while True:
        for number, (prompt, output) in islice(numbered, at_once - len(open_)):
            proposer.open(number, prompt, len(prompt), "")
            open_[number] = Answer([*prompt, *output], len(prompt))
        if not open_:
            break
        counted.round(open_)
    asks = sum(counted.asks.values())
    return {
        "asks": asks,
        "blocks_per_ask": round(counted.blocks / asks, 1),
        "shares": {name: round(count / asks, 4) for name, count in sorted(counted.asks.items())},
        "accepted": dict(sorted(counted.accepted.items())),
        "left_out_by_match": {n: c for n, c in sorted(counted.left_out.items()) if c},
    }


def _read(path: Path) -> Iterator[tuple[list[int], list[int]]]:
    with path.open() as lines:
        for line in lines:
            value = json.loads(line)
            yield value["prompt_token_ids"], value["output_token_ids"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traffic", type=Path)
    parser.add_argument("--method", choices=("ngram", "suffix"), default="ngram")
    parser.add_argument("--k", type=int, default=4, help="drafts wanted")
    parser.add_argument("--at-once", type=int, default=8, help="answers decoded side by side")
    parser.add_argument(
        "--likely", action="store_true", help="no time for more than what is likely"
    )
    options = parser.parse_args()
    proposer = NgramProposer(2, 5) if options.method == "ngram" else SuffixProposer()
    answers = _read(options.traffic)
    counted = cover(proposer, answers, options.k, options.at_once, options.likely)
    print(json.dumps(counted, indent=1))


if __name__ == "__main__":
    main()
