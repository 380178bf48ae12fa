"""What requests do to the target's logits before temperature and filters, as tensors.

Knows positions in a [R, V] matrix of logits and what to write there; does not know sequences or
where the positions come from. Nothing is read back from the device, and what no request of a step
asks for costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Penalised logits stay inside, so that no penalty can make an infinity or a NaN of a number.
_LARGEST = 1e30


@dataclass(frozen=True, slots=True)
class Masks:
    """Bit masks of some rows: `rows` [M] int64, `bits` [M, ceil(V / 32)] int32, set = allowed."""

    rows: Tensor
    bits: Tensor


@dataclass(frozen=True, slots=True)
class Allowed:
    """`rows` [A] int64 that keep nothing but the positions `at` [N] int64."""

    rows: Tensor
    at: Tensor


@dataclass(frozen=True, slots=True)
class Bias:
    """`values` [N] float32 that are added at `at` [N] int64."""

    at: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """At `at` [N] int64: the three numbers of `penalties.RowPenalties`, [N] float32."""

    at: Tensor
    factors: Tensor
    frequencies: Tensor
    presences: Tensor


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """All edits of a step, each None where no request asks for it, all on the engine's device.

    Positions are `row * V + token id` and distinct, but for `forbidden` [N] int64, which may hold
    one twice.
    """

    masks: Masks | None = None
    allowed: Allowed | None = None
    forbidden: Tensor | None = None
    bias: Bias | None = None
    penalties: Penalties | None = None

    def apply(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Edited logits [R, V], a new tensor, and which rows have nothing left, bool [R].

        The order is vLLM's: grammar mask, allowed ids, forbidden ids (bad words, then stop ids
        before min_tokens), bias, penalties. A row that has nothing left becomes all zeros, so that
        no NaN gets into what is computed from it; nothing that it chooses may be emitted. None
        where no row can have lost everything. float32, or float64 where `logits` are.
        """
        kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
        edited = logits.to(kind, copy=True, memory_format=torch.contiguous_format)
        flat = edited.view(-1)
        if self.masks is not None:
            _mask(edited, self.masks)
        if self.allowed is not None:
            kept = flat[self.allowed.at]
            edited.index_fill_(0, self.allowed.rows, -torch.inf)
            flat.index_copy_(0, self.allowed.at, kept)
        if self.forbidden is not None:
            flat.index_fill_(0, self.forbidden, -torch.inf)
        if self.bias is not None:
            flat.index_add_(0, self.bias.at, self.bias.values.to(flat.dtype))
        if self.penalties is not None:
            _penalise(flat, self.penalties)
        if self.masks is None and self.allowed is None and self.forbidden is None:
            return edited, None
        empty = edited.amax(dim=-1) == -torch.inf
        return edited.masked_fill_(empty.unsqueeze(-1), 0.0), empty


def _mask(logits: Tensor, masks: Masks) -> None:
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    refused = ((masks.bits.unsqueeze(-1) >> shifts) & 1) == 0
    refused = refused.flatten(1)[:, : logits.shape[1]]
    rows = logits[masks.rows].masked_fill_(refused, -torch.inf)
    logits.index_copy_(0, masks.rows, rows)


def _penalise(flat: Tensor, penalties: Penalties) -> None:
    values = flat[penalties.at]
    factors = penalties.factors.to(flat.dtype)
    penalised = torch.where(values > 0, values / factors, values * factors)
    penalised -= penalties.frequencies.to(flat.dtype)
    penalised -= penalties.presences.to(flat.dtype)
    penalised.clamp_(-_LARGEST, _LARGEST)
    # What is masked stays masked.
    flat.index_copy_(0, penalties.at, torch.where(values == -torch.inf, values, penalised))
