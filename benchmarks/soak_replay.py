"""Re-runs a soak's answer plainly, with the same seed, and compares token for token.

Knows how a request is made plain and how the two candidates' scores at a difference are processed
(penalties and bias; a token that a filter or mask removed is in neither answer). Where two tokens
differ whose perturbed scores lie within `divergence.TOLERANCE` of each other, sums in another
order explain it; anything else is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.divergence import TOLERANCE, Target, first_difference, scores
from benchmarks.soak_answers import Answer, Choice
from benchmarks.soak_checks import expected_choices
from benchmarks.soak_draw import SoakRequest
from benchmarks.soak_texts import loaded

_INT64 = 2**64
_INT64_MIN = -(2**63)


class Verdict(Enum):
    EQUAL = "equal"
    NUMERICAL = "numerical"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Replay:
    """One choice against its plain twin. `gap` is None where one had ended or nothing differs."""

    number: int
    choice: int
    tokens: int
    verdict: Verdict
    position: int | None = None
    expected: int | None = None
    got: int | None = None
    gap: float | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.value}


def replayable(request: SoakRequest, answer: Answer) -> bool:
    """Whether the answer is complete, seeded and told its ids."""
    return (
        request.place.generates
        and request.refused is None
        and "seed" in request.body
        and answer.status == 200
        and not answer.left
        and not answer.broken
        and len(answer.choices) == expected_choices(request)
        and all(choice.ids is not None for choice in answer.choices.values())
    )


def plain(request: SoakRequest) -> SoakRequest:
    """The same request without speculation and streaming; its answer tells all ids."""
    left_out = {"stream", "stream_options", "request_id"}
    body = {name: value for name, value in request.body.items() if name not in left_out}
    body["speculative_decoding"] = {"enabled": False}
    if request.place.is_grpc:
        body.setdefault("prompt_logprobs", 0)
    else:
        body["return_token_ids"] = True
    return replace(request, body=body, cancel_after=None)


def compare(request: SoakRequest, answer: Answer, again: Answer, target: Target) -> list[Replay]:
    """One replay for each choice; `again` answers `plain(request)`."""
    n = int(request.body.get("n", 1))
    return [
        _compare(request, index, index % n, choice, again.choices[index], target)
        for index, choice in sorted(answer.choices.items())
    ]


def _compare(
    request: SoakRequest, index: int, number: int, got: Choice, expected: Choice, target: Target
) -> Replay:
    """`number` is the choice's among those of its prompt."""
    right, ids = expected.ids or [], got.ids or []
    position = first_difference(right, ids)
    base = Replay(request.number, index, len(right), Verdict.EQUAL)
    if position is None:
        ends = [
            (_said(request, one), one.finish_reason, one.stop_reason) for one in (expected, got)
        ]
        if ends[0] == ends[1]:
            return base
        detail = f"equal ids, but {ends[1]!r} instead of {ends[0]!r}"
        return replace(base, verdict=Verdict.DIFFERENT, detail=detail)
    if position >= min(len(right), len(ids)) or expected.prompt_ids is None:
        detail = f"{len(ids)} tokens instead of {len(right)}"
        return replace(base, verdict=Verdict.DIFFERENT, position=position, detail=detail)
    pair = right[position], ids[position]
    gap = pair_gap(target, expected.prompt_ids, right[:position], pair, request.body, number)
    verdict = Verdict.NUMERICAL if gap < TOLERANCE else Verdict.DIFFERENT
    return replace(base, verdict=verdict, position=position, expected=pair[0], got=pair[1], gap=gap)


def _said(request: SoakRequest, choice: Choice) -> object:
    """What equal ids must say alike, streamed and whole.

    A call is what it means: spaces between its parts may go. One that was cut is told in pieces
    where it is streamed, and is no call, only text, where it is not.
    """
    if "tools" not in request.body:
        return choice.text
    if choice.finish_reason != "tool_calls":
        return None
    arguments = [loaded(text) for text in choice.tool_arguments.values()]
    return choice.text, list(choice.tool_names.values()), arguments


def pair_gap(
    target: Target,
    prompt: Sequence[int],
    output: Sequence[int],
    pair: tuple[int, int],
    body: Mapping[str, Any],
    number: int,
) -> float:
    """Distance of the pair's perturbed scores behind `prompt` + `output`."""
    prefix = [*prompt, *output]
    row = processed(target.logits(prefix, len(prefix))[0], prompt, output, body)
    seed = (int(body["seed"]) + number - _INT64_MIN) % _INT64 + _INT64_MIN
    temperature = float(body.get("temperature", 1.0))
    perturbed = scores(row[None], temperature, seed, len(prefix))[0]
    return abs(float(perturbed[pair[0]]) - float(perturbed[pair[1]]))


def processed(
    logits: npt.NDArray[np.float32],
    prompt: Sequence[int],
    output: Sequence[int],
    body: Mapping[str, Any],
) -> npt.NDArray[np.float32]:
    """Logits [V] with bias and penalties, in the order in which vLLM's sampler applies them."""
    row = logits.astype(np.float64)
    for token_id, bias in (body.get("logit_bias") or {}).items():
        row[int(token_id)] += bias
    repetition = float(body.get("repetition_penalty", 1.0))
    seen = np.unique(np.asarray([*prompt, *output], dtype=np.int64))
    row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    counts = np.bincount(np.asarray(output, dtype=np.int64), minlength=len(row))
    row -= float(body.get("frequency_penalty", 0.0)) * counts
    row -= float(body.get("presence_penalty", 0.0)) * (counts > 0)
    return row.astype(np.float32)
