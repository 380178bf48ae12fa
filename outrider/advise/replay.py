"""What a fixed K would have accepted of recorded outputs: the verifier's rounds, without a target.

Knows ids and proposers; knows no text, no costs and no transport. Under the coupled rule, and at
temperature 0 under any, a draft token is accepted iff it is the token that the target emits, and
what the target emits does not depend on drafts: the recorded output decides every round.
The rounds are the verifier's own with adaptive verification off (docs/choosing.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.acceptance import Acceptance, Round
from outrider.advise.spool import TrafficRequest
from proposer_service.proposers.base import Proposer


class Tally:
    """Sums over the rounds of one method at one K.

    `acceptance` has the definitions' sums. `rounds` counts every decode round, also those without
    a draft, and `emitted` their tokens: the first token of an answer is prefill's and in neither.
    `by_drafted[d]` is how many rounds verified d drafts.
    """

    __slots__ = ("acceptance", "by_drafted", "emitted", "rounds")

    def __init__(self, num_speculative_tokens: int) -> None:
        self.acceptance = Acceptance(num_speculative_tokens)
        self.rounds = 0
        self.emitted = 0
        self.by_drafted = [0] * (num_speculative_tokens + 1)

    @property
    def k(self) -> int:
        """num_speculative_tokens."""
        return self.acceptance.num_spec_tokens

    @property
    def draft_share(self) -> float:
        """Share of decode rounds that carried a draft; 0.0 where there were no rounds."""
        return self.acceptance.num_spec_steps / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens of a decode round, those without a draft included; 1.0 without rounds."""
        return self.emitted / self.rounds if self.rounds else 1.0

    def add(self, round_: Round) -> None:
        self.acceptance.add(round_)
        self.rounds += 1
        self.emitted += round_.emitted
        self.by_drafted[round_.drafted] += 1


class Cursor:
    """How far one K has decoded one request; `position` is its number of output tokens.

    The first output token comes from prefill, which carries no drafts, unless nothing of the
    prompt but its last id was left to compute.
    """

    __slots__ = ("_limit", "_output", "position", "tally")

    def __init__(self, request: TrafficRequest, tally: Tally) -> None:
        self.tally = tally
        self.position = 0 if request.cached or len(request.prompt_ids) == 1 else 1
        self._output = request.output_ids
        self._limit = request.max_tokens

    @property
    def live(self) -> bool:
        """Whether output is left to decode."""
        return self.position < len(self._output)

    @property
    def wanted(self) -> int:
        """Drafts that may be verified now: a round emits one token more than it accepts."""
        if self._limit is None:
            return self.tally.k
        return max(min(self.tally.k, self._limit - self.position - 1), 0)

    def verify(self, draft_ids: Sequence[int], proposer: str = "") -> None:
        """One round: drafts up to the first that the output contradicts, and the token behind."""
        output, position = self._output, self.position
        left = len(output) - position
        matched = 0
        for draft in draft_ids[:left]:
            if draft != output[position + matched]:
                break
            matched += 1
        emitted = min(matched + 1, left)
        self.tally.add(
            Round(
                base=position,
                offered=len(draft_ids),
                drafted=len(draft_ids),
                accepted=matched,
                emitted=emitted,
                proposer=proposer,
            )
        )
        self.position += emitted


def replay(
    proposer: Proposer, tallies: Sequence[Tally], request: TrafficRequest, number: int
) -> None:
    """Decode one request at the K of every tally; `number` is the sequence's, not open yet.

    Several tallies may share a proposer only where its drafts depend on nothing but the text
    behind which it drafts (`Method.remembers` is false). The proposer is told what a verifier tells
    it, when it tells it: the last round's tokens never are.
    """
    prompt, output = request.prompt_ids, request.output_ids
    proposer.open(number, prompt, len(prompt), request.salt)
    cursors = [Cursor(request, tally) for tally in tallies]
    told = 0
    while live := [cursor for cursor in cursors if cursor.live]:
        position = min(cursor.position for cursor in live)
        due = [(cursor, cursor.wanted) for cursor in live if cursor.position == position]
        asking = any(wanted for _, wanted in due)
        if asking:
            proposer.extend(number, output[told:position])
            told = position
        for cursor, wanted in due:
            cursor.verify(proposer.propose(number, wanted).ids if wanted else ())
        if asking:
            proposer.settle()
    proposer.close(number, request.finished)
