"""What the verifier's parts say to each other: ids and numbers, never text.

Knows no transport and no engine. The text edge makes a `Request`, the scheduler answers it with
`Output`s; drafts reach the scheduler as `DraftBlock`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from outrider.acceptance import Round
from outrider.records import record
from verifier_service.grammar.structure import AskedStructure

# The proposer's name of drafts that come from a request's own prediction.
PREDICTION = "prediction"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class RejectionRule(Enum):
    """`rejection_sample_method` of a speculative config."""

    COUPLED = "coupled"
    STANDARD = "standard"
    BLOCK = "block"


class QForm(Enum):
    """How a block describes the distribution its ids came from (types.proto)."""

    COUPLED = "coupled"
    ONE_HOT = "one_hot"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Resolved sampling of one request: every field has its value.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 mean no limit; `seed` is a signed
    64-bit number; `stop_token_ids` includes the model's end-of-sequence ids unless they are
    ignored. `bad_words` are token sequences whose last id is forbidden behind the others;
    `allowed_token_ids` empty allows all; none of `stop_token_ids` is chosen among the first
    `min_tokens` outputs. `logprobs` and `prompt_logprobs` count the top tokens told at each
    position, -1 for none told.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 16
    stop_token_ids: frozenset[int] = frozenset()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1


@record(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability under the target's unprocessed distribution.

    `rank` is 1 for the most likely token; `top` are the most likely (id, log-probability) pairs.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Constraint(Protocol):
    """What a request's output must match (a compiled grammar with its state).

    The state stands behind the committed output. Used by the engine's thread alone.
    """

    def admitted(self, draft_ids: Sequence[int]) -> int:
        """How many leading ids the constraint admits; the state is as before."""

    def masks(self, draft_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """Bit masks [len(draft_ids) + 1, ceil(V / 32)] of allowed ids: row i stands behind i ids.

        Rows behind a refused id, or behind the constraint's end, allow everything; no such row
        is ever emitted from. The state is as before.
        """

    def advance(self, token_ids: Sequence[int]) -> None:
        """Commit ids. Raises ValueError where one is refused: a bug, never the client's fault."""

    @property
    def ended(self) -> bool:
        """Whether the output is complete: nothing may follow but the end of the request."""

    @property
    def complete(self) -> bool:
        """Whether the output may end here; it may go on as well unless it has ended."""


@record(frozen=True, slots=True)
class SparseRow:
    """q of one draft token: ids and probabilities times 2^32, summing to 2^32 exactly."""

    token_ids: tuple[int, ...]
    masses: tuple[int, ...]


@record(frozen=True, slots=True)
class DraftBlock:
    """A chain of draft tokens that continues `base_length` committed ids.

    `refused` counts the ids at the offered block's end that a request's constraint cut off.
    """

    proposer: str
    base_length: int
    token_ids: tuple[int, ...]
    q_form: QForm = QForm.ONE_HOT
    q: tuple[SparseRow, ...] = ()
    match_length: int = 0
    confidences: tuple[float, ...] = ()
    draft_ns: int = 0
    lookahead_hit: bool = False
    refused: int = 0


@record(frozen=True, slots=True)
class SequenceView:
    """One sequence as proposers see it when drafts are asked for.

    `ids` is the append-only list of prompt and committed ids (not a copy); `max_draft_tokens` is
    how many drafts are wanted now; `proposer`, `drafted`, `accepted` tell the round just ended.
    """

    sequence_id: int
    ids: Sequence[int]
    prompt_length: int
    max_draft_tokens: int
    sampling: Sampling
    proposer: str = ""
    drafted: int = 0
    accepted: int = 0
    cache_salt: str = ""
    # Only this proposer is asked; empty means all.
    only: str = ""
    traceparent: str = ""


class OwnDrafts(Protocol):
    """Drafts that a request brings with it (its prediction, with how far it was followed).

    Used by the engine's thread alone.
    """

    def block(self, ids: Sequence[int], prompt_length: int, most: int) -> DraftBlock | None:
        """At most `most` drafts behind `ids`, prompt and answer, or None.

        Called with the same answer, or a longer one, each time.
        """


@dataclass(slots=True)
class Request:
    """One generation. `num_speculative_tokens` None takes the verifier's ceiling, 0 turns off.

    `proposer` names the only one whose drafts are used, PREDICTION the request's own; empty: all.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    num_speculative_tokens: int | None = None
    proposer: str = ""
    priority: int = 0
    cache_salt: str = ""
    constraint: Constraint | None = None
    prediction: OwnDrafts | None = None
    # W3C trace context for proposers; empty where the request is not traced.
    traceparent: str = ""
    # What the constraint is made of where the engine runs in another process, which makes it there.
    structure: AskedStructure | None = None


@record(frozen=True, slots=True)
class Output:
    """Tokens of one round; the last one carries why the request finished.

    `error` is set instead where the engine failed the request, `refusal` where the request itself
    asks for the impossible. The first output tells how long the request waited before it was first
    scheduled.
    """

    token_ids: tuple[int, ...] = ()
    round: Round | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    cached_prompt_tokens: int = 0
    error: str = ""
    refusal: str = ""
    queue_ns: int = 0
    # One for each of `token_ids` where asked for; of the prompt (but its first id) in the first.
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class OutputSink(Protocol):
    """Takes a request's outputs; called on the engine's thread, must not block."""

    def __call__(self, output: Output) -> None: ...


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What is known of the answers to some views before anybody is asked.

    `blocks` are answers, by sequence. `unknown` sequences' answers would have to be waited for;
    `stopgaps` are drafts for some of these: what is left of the last answer, its beginning having
    come true. They are as honest guesses as any, but not what would be answered.
    """

    blocks: dict[int, list[DraftBlock]]
    unknown: int = 0
    stopgaps: dict[int, list[DraftBlock]] = field(default_factory=dict)

    def without_waiting(self) -> dict[int, list[DraftBlock]]:
        """All drafts that are there now, by sequence."""
        return {**self.stopgaps, **self.blocks} if self.stopgaps else self.blocks


class Expected(NamedTuple):
    """What is known of the next answers, by counts of sequences.

    For `known` there are drafts; of `unknown` it is not known whether there are.
    """

    known: int
    unknown: int


class DraftSource(Protocol):
    """Where the scheduler gets drafts from: the proposer client, or a fake in tests."""

    @property
    def looks_ahead(self) -> bool:
        """Whether anybody prepares answers to outcomes before they are known, or nobody is there.

        Where nobody does, only those are asked who are waited for.
        """

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        """Tell all proposers what became true; one message each. `closed`: (id, finished)."""

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        """Blocks that answer the last `send`, waiting at most for the draft deadline.

        Without `wait` those that are there; what comes later is not taken.
        """

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        """What `collect` would give once these views are sent, as far as that is known beforehand.

        None where proposers have to be asked always. Sends nothing, waits for nothing.
        """

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        """What proposers would answer once exactly these ids are committed to these sequences;
        None where they have to be asked always.

        `outcomes`: (sequence id, all ids committed since the last `send` that told of it). Called
        on the engine's thread before `send`; waits for nothing.
        """

    def hush(self) -> None:
        """Read nothing for now: the device stands still for the engine's thread, and every call in
        which that lets go of Python's lock is a chance for another one to take it."""

    def listen(self) -> None:
        """Read again. So do `send` and a `collect` that waits."""

    def close(self) -> None:
        """End all streams."""


class NoDrafts:
    """A source without proposers: plain decoding."""

    looks_ahead = True

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        return

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        return {}

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        return Foreseen({})

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        return Expected(0, 0)

    def hush(self) -> None:
        return

    def listen(self) -> None:
        return

    def close(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the verifier's edge needs to know of the loaded target."""

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    engine: str
    device: str
    dtype: str
    extra: dict[str, str] = field(default_factory=dict)
