"""Whether our paged attention computes, on this device, what another one does.

Knows made-up pages and what steps look like at their worst: contexts of all lengths, padding, keys
split and not, one call behind another. Does not know what is done where they differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from verifier_service.engines.attention import StepLayout
from verifier_service.engines.rounds_apart import rounds_apart

_log = logging.getLogger(__name__)

# Query, keys, values, query bounds, contexts, tables, most queries, scale -> answers.
Attend = Callable[..., Tensor]

# Pages that are made up; a sequence sees up to all of them.
_PAGES = 16
# Keys of a sequence go into at most so many parts.
_PARTS = (1, 3, 16)
# Tokens of a prompt that is made up.
_PROMPT = 70


@dataclass(frozen=True, slots=True)
class _Step:
    """What an attention is called with, but for how it splits keys."""

    query: Tensor
    pages: tuple[Tensor, Tensor]
    cu_query: Tensor
    used: Tensor
    table: Tensor
    max_query: int

    def through(self, attend: Attend) -> Tensor:
        """Its answers [T, heads, size] in float32."""
        scale = self.query.shape[2] ** -0.5
        bounds = self.cu_query, self.used, self.table
        return attend(self.query, *self.pages, *bounds, self.max_query, scale).float()


def agrees(
    attend: Attend,
    otherwise: Attend,
    keys: Tensor,
    heads: int,
    max_query: int,
    tried: Sequence[int] = _PARTS,
) -> bool:
    """Whether two attentions give the same, up to rounding, over pages like `keys`.

    `attend` also takes `parts`, into how many a sequence's keys are split at most: as `tried`. The
    same call made twice has to give the same bits, whatever was called between.
    """
    step, other = _made_up(keys, heads, max_query)
    tolerance = _tolerance(keys)
    wanted = [one.through(otherwise) for one in (step, other)]
    for parts in tried:
        split = partial(attend, parts=parts)
        found = [one.through(split) for one in (step, other)]
        off = float(torch.cat(list(map(_off, found, wanted))).max())
        repeats = torch.equal(step.through(split), found[0])
        # What is not a number is not at most another.
        if not (off <= tolerance and repeats):
            _log.warning(
                "attention over keys in at most %d parts is off by %.2g of a token's largest value"
                "%s",
                parts,
                off,
                "" if repeats else ", and gives something else the second time",
            )
            return False
    return True


def agrees_apart(attend: Attend, otherwise: Attend, keys: Tensor, heads: int, most: int) -> bool:
    """Whether two attentions together give what one of them does: `attend` the first sequences, of
    at most `most` queries, and `otherwise` the rest, a prompt first (`rounds_apart`)."""
    step, _ = _made_up(keys, heads, most, prompt=_PROMPT)
    wanted = step.through(otherwise)
    many = rounds_apart(
        StepLayout(step.used, cu_query=step.cu_query, used=step.used, table=step.table), most
    )
    assert many.cu_query is not None
    assert many.rounds is not None
    assert many.rounds.cu_query is not None
    out = replace(step, cu_query=many.cu_query).through(otherwise).to(keys.dtype)
    few = replace(step, cu_query=many.rounds.cu_query, max_query=most)
    off = float(_off(few.through(partial(attend, out=out)), wanted).max())
    if not off <= _tolerance(keys):
        _log.warning("attention of rounds apart is off by %.2g of a token's largest value", off)
        return False
    return True


def _tolerance(keys: Tensor) -> float:
    return 1e-4 if keys.dtype == torch.float32 else 0.03


def _off(found: Tensor, wanted: Tensor) -> Tensor:
    """[T], by token: what many keys are mixed into is much smaller than what one key gives."""
    error = (found - wanted).abs().flatten(1).amax(1)
    return error / wanted.abs().flatten(1).amax(1)


def _made_up(keys: Tensor, heads: int, max_query: int, prompt: int = 0) -> tuple[_Step, _Step]:
    """A step of many kinds of sequences, and the same sequences with other contexts.

    One of them is a `prompt` of so many tokens, if that is given.
    """
    device, dtype = keys.device, keys.dtype
    blocks, page, kv_heads, size = keys.shape
    generator = torch.Generator(device=device).manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    few = min(blocks, _PAGES)
    most = few * page
    # The fourth is padding; queries of the fifth stand on both sides of a part's beginning.
    contexts = [most - 3, 1, page // 2 + 2, 1, page + 5, 129, 7, most // 2]
    lengths = [max_query, 1, max_query, 0, max(max_query - 1, 1), 1, 1, max_query]
    lengths[5] = prompt or lengths[5]
    limits = [max(1, length) for length in lengths]
    used = [min(max(context, least), most) for context, least in zip(contexts, limits, strict=True)]
    other = [max(context * 2 // 3, least) for context, least in zip(used, limits, strict=True)]
    places = torch.arange(few, dtype=torch.int32, device=device)
    table = torch.stack([(places * step + step) % few for step in range(1, 2 * len(used), 2)])
    step = _Step(
        normal(sum(lengths), heads, size),
        (normal(few, page, kv_heads, size), normal(few, page, kv_heads, size)),
        torch.nn.functional.pad(ints(lengths).cumsum(0), (1, 0)).to(torch.int32),
        ints(used),
        table.contiguous(),
        max(max_query, prompt),
    )
    return step, replace(step, used=ints(other))
