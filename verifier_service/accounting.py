"""The one place where rounds and tokens are summed, by request and since start.

Knows what was emitted; does not know text, transports or metric names. Everything here belongs to
one thread, the event loop's. A token is counted when the edge has taken it from the engine and
kept it: what a stop string cut, or what arrives after a cancellation, is not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from outrider.acceptance import Acceptance, Round

# How requests end, beside the finish reasons stop, length and abort.
OUTCOME_ERROR = "error"


@dataclass(slots=True)
class ProposerSums:
    """What was verified of one proposer's drafts, over all requests."""

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0

    def add(self, round_: Round) -> None:
        self.num_spec_steps += 1
        self.num_draft_tokens += round_.drafted
        self.num_accepted_draft_tokens += round_.accepted


class Ledger:
    """Running totals over all requests of one verifier.

    `num_spec_tokens` is the most drafts of any round.
    """

    __slots__ = (
        "acceptance",
        "by_proposer",
        "finished",
        "generation_tokens",
        "num_spec_tokens",
        "off_rounds",
        "prompt_tokens",
    )

    def __init__(self, num_spec_tokens: int) -> None:
        self.num_spec_tokens = num_spec_tokens
        self.acceptance = Acceptance(num_spec_tokens)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        # By the name of the proposer whose drafts were verified.
        self.by_proposer: dict[str, ProposerSums] = {}
        # Rounds without drafts, by the reason that the engine gave, but for its figures.
        self.off_rounds: Counter[str] = Counter()
        # Requests by how they ended: stop, length, abort, error.
        self.finished: Counter[str] = Counter()

    def open(
        self, prompt_tokens: int, *, num_spec_tokens: int | None = None, detailed: bool = False
    ) -> Account:
        """A new request's account; `detailed` keeps one entry for each step.

        `num_spec_tokens` is the request's own ceiling, unless it is the ledger's.
        """
        own = self.num_spec_tokens if num_spec_tokens is None else num_spec_tokens
        return Account(self, prompt_tokens, own, detailed)

    def add(self, round_: Round) -> None:
        """Count one round of any request."""
        self.acceptance.add(round_)
        if round_.drafted:
            self.by_proposer.setdefault(round_.proposer, ProposerSums()).add(round_)
        if round_.off_reason:
            # Behind a colon come figures, other ones each time: as keys they would pile up.
            self.off_rounds[round_.off_reason.partition(":")[0]] += 1


class Account:
    """One request's sums; whatever is added here is added to the ledger in the same call."""

    __slots__ = (
        "_closed",
        "_ledger",
        "_started",
        "acceptance",
        "completion_tokens",
        "prompt_tokens",
    )

    def __init__(
        self, ledger: Ledger, prompt_tokens: int, num_spec_tokens: int, detailed: bool
    ) -> None:
        self._ledger = ledger
        self._started = False
        self._closed = False
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.acceptance = Acceptance(num_spec_tokens, keep_steps=detailed)

    def add(self, tokens: int, round_: Round | None) -> None:
        """Count what one output emitted, after cuts. The prompt counts with the first one.

        Raises ValueError where the round contradicts itself or the ceiling K; nothing is
        counted then.
        """
        if self._closed:
            raise ValueError("the account is closed: nothing may be counted after the end")
        if round_ is not None:
            self._check(tokens, round_)
        if not self._started:
            self._started = True
            self._ledger.prompt_tokens += self.prompt_tokens
        self.completion_tokens += tokens
        self._ledger.generation_tokens += tokens
        if round_ is not None:
            self.acceptance.add(round_)
            self._ledger.add(round_)

    def close(self, outcome: str) -> None:
        """Say how the request ended; only the first call counts."""
        if not self._closed:
            self._closed = True
            self._ledger.finished[outcome] += 1

    def _check(self, tokens: int, round_: Round) -> None:
        if round_.emitted != tokens:
            raise ValueError(f"round emitted {round_.emitted} tokens but carries {tokens}")
        ceiling = self.acceptance.num_spec_tokens
        if not 0 <= round_.accepted <= round_.drafted <= ceiling:
            raise ValueError(
                f"round accepted {round_.accepted} of {round_.drafted} drafts; "
                f"the ceiling is {ceiling}"
            )
