"""The one place where rounds and tokens are summed, by request and since start.

Knows what was emitted; does not know text, transports or metric names. Everything here belongs to
one thread, the event loop's. A token is counted when the edge has taken it from the engine and
kept it: what a stop string cut, or what arrives after a cancellation, is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.acceptance import Acceptance, Round
from verifier_service.request_sums import RequestSums, reason_without_figures

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
        self,
        prompt_tokens: int,
        *,
        num_spec_tokens: int | None = None,
        detailed: bool = False,
        traced_rounds: int | None = None,
    ) -> Account:
        """A new request's account; `detailed` keeps one entry for each step.

        `num_spec_tokens` is the request's own ceiling, unless it is the ledger's. `traced_rounds`
        is how many rounds a trace of the request tells one by one, None where there is none.
        """
        own = self.num_spec_tokens if num_spec_tokens is None else num_spec_tokens
        traced = None if traced_rounds is None else RequestSums(own, traced_rounds)
        return Account(self, prompt_tokens, own, detailed, traced)

    def add(self, round_: Round) -> None:
        """Count one round of any request."""
        if round_.drafted:
            self.acceptance.add(round_)
            sums = self.by_proposer.get(round_.proposer)
            if sums is None:
                sums = self.by_proposer[round_.proposer] = ProposerSums()
            sums.add(round_)
        if round_.off_reason:
            self.off_rounds[reason_without_figures(round_.off_reason)] += 1


class Account:
    """One request's sums; whatever is added here is added to the ledger in the same call.

    `outcome` is how the request ended, empty until it has; `traced` is None unless it is traced.
    """

    __slots__ = (
        "_ledger",
        "_started",
        "acceptance",
        "completion_tokens",
        "outcome",
        "prompt_tokens",
        "traced",
    )

    def __init__(
        self,
        ledger: Ledger,
        prompt_tokens: int,
        num_spec_tokens: int,
        detailed: bool,
        traced: RequestSums | None = None,
    ) -> None:
        self._ledger = ledger
        self._started = False
        self.outcome = ""
        self.traced = traced
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.acceptance = Acceptance(num_spec_tokens, keep_steps=detailed)

    def add(self, tokens: int, round_: Round | None, token_ids: Sequence[int] = ()) -> None:
        """Count what one output emitted, after cuts. The prompt counts with the first one.

        `token_ids` are these tokens, for a trace that tells rounds one by one.

        Raises ValueError where the round contradicts itself or the ceiling K; nothing is
        counted then.
        """
        if self.outcome:
            raise ValueError("the account is closed: nothing may be counted after the end")
        if round_ is not None:
            self._check(tokens, round_)
        if not self._started:
            self._started = True
            self._ledger.prompt_tokens += self.prompt_tokens
        self.completion_tokens += tokens
        self._ledger.generation_tokens += tokens
        if round_ is not None:
            if round_.drafted:
                self.acceptance.add(round_)
            self._ledger.add(round_)
            if self.traced is not None:
                self.traced.add(round_, token_ids)

    def close(self, outcome: str) -> None:
        """Say how the request ended; only the first call counts."""
        if not self.outcome:
            self.outcome = outcome
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
