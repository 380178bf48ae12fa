"""What the scheduler asks of an engine: run the target over a packed step, get tokens back.

Knows ids, positions and blocks; does not know requests, proposers or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.records import record
from verifier_service.messages import ModelInfo, QForm, Sampling, SparseRow, TokenLogprob


@record(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step.

    `ids` are the tokens whose keys and values this step computes, the first at absolute position
    `start`; the last `drafts` of them are draft tokens. `blocks` covers `start + len(ids)`
    positions. `samples` is False for a prefill chunk that does not reach the sequence's end.
    `sequence_ids` are prompt and committed output (not a copy), the first `prompt_length` of them
    the prompt: what penalties count. `mask` are a grammar's bit masks [drafts + 1, ceil(V / 32)].
    `prompt_logprobs` asks for log-probabilities of the prompt ids in and right behind this chunk.
    """

    ids: list[int]
    start: int
    blocks: list[int]
    drafts: int
    samples: bool
    sampling: Sampling
    q_form: QForm = QForm.ONE_HOT
    q: tuple[SparseRow, ...] = ()
    sequence_ids: Sequence[int] = ()
    prompt_length: int = 0
    mask: npt.NDArray[np.int32] | None = None
    prompt_logprobs: bool = False


@record(frozen=True, slots=True)
class Verdict:
    """What the target says to one chunk: drafts accepted, and these plus its own token.

    A chunk that does not sample but asked for prompt log-probabilities has no tokens. `refusal`
    says instead why there can be none any more: the request's own rules leave it nothing.
    """

    accepted: int
    tokens: list[int]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The engine's paged KV cache: `num_blocks` blocks of `block_size` tokens.

    `neighbours` tells whether a step is cheaper where a sequence's blocks lie side by side.
    """

    num_blocks: int
    block_size: int
    neighbours: bool = False


def is_verification(chunk: Chunk) -> bool:
    """Whether every id of the chunk has a row of logits that chooses, and nobody asks for more."""
    return chunk.samples and len(chunk.ids) == chunk.drafts + 1 and not chunk.prompt_logprobs


# Asked with a step's verdicts, in the order of its chunks: whether what follows is most likely one
# plain step of the same sequences, so that it may be begun before it is asked for.
GoesOn = Callable[[Sequence[Verdict]], bool]
# What the host does while the device works.
Meanwhile = Callable[[], None]
# Chunks of those that have begun since, for the step behind this one: rounds, then prompts or parts
# of them. None: that step is not to be begun.
Joining = Callable[[], Sequence[Chunk] | None]


def no_more() -> None:
    """Nothing to do meanwhile."""


def nobody() -> Sequence[Chunk] | None:
    """Nobody joins."""
    return ()


class Engine(Protocol):
    """The target model. Not thread-safe: one thread runs it."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def cache(self) -> CacheShape: ...

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        """One forward over all chunks; a verdict for each that samples, None for the others.

        `meanwhile` is called once, as soon as the device has its work; first of all where the host
        computes, or takes longer to launch the work than the device to do it. Not where that fails.
        An engine that can begin the next step unasked asks `goes_on` first, at most once and as
        soon as it knows the verdicts; if that says so the step is begun before `run` returns.
        Where the host is `sure` to say so of all sequences that do not end, an engine may begin it
        before there are verdicts; `goes_on` is asked all the same. Of a step that it is about to
        begin it asks who is `joining`: their chunks come behind those of this step's sequences.
        """

    def device_busy_s(self) -> float | None:
        """How long the device has worked since start, in s; None where the host does the work."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the keys and values of whole blocks, (from, to), one pair after the other."""

    def close(self) -> None:
        """Release device memory."""
