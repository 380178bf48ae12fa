"""Which kernel serves attention of few queries a sequence: ours, where it is there and right.

Knows layouts and kernels; does not know models. Triton is imported only where there is a GPU, and
its kernel is used only after it has agreed with torch's on the spot.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from verifier_service.engines.attention import PagedCache, StepLayout, attend_pages
from verifier_service.engines.paged_agreement import agrees, agrees_apart

_log = logging.getLogger(__name__)

# Queries a sequence that the comparison with torch's kernel tries.
_TRIED = (1, 2, 5, 9)


class ShortAttention:
    """Our kernel behind a step's layout.

    `apart`: beside torch's kernel in one step it gives what that gives alone.
    """

    def __init__(self, kernels: Any, *, apart: bool) -> None:
        self._kernels = kernels
        self.apart = apart

    def serves(self, query: Tensor, keys: Tensor, layout: StepLayout) -> bool:
        """Whether the kernel takes these shapes."""
        if layout.table is None or layout.max_query == 0:
            return False
        return self.takes(query.shape[1], keys, layout.max_query)

    def takes(self, heads: int, keys: Tensor, queries: int) -> bool:
        """Whether it takes so many queries of a sequence, of `heads` heads each, over such keys."""
        served: bool = self._kernels.serves(heads, keys, queries)
        return served

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: StepLayout,
        scale: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """As `attend_pages`, without a window; written to `out`, contiguous, if that is given."""
        result: Tensor = self._kernels.attend(
            query.contiguous(),
            keys,
            values,
            layout.cu_query,
            layout.used,
            layout.table,
            layout.max_query,
            scale,
            out=out,
        )
        return result


def short_attention(cache: PagedCache, heads: int) -> ShortAttention | None:
    """The kernel for caches like this one and `heads` query heads; None where torch's is used."""
    keys = cache.keys[0]
    if keys.device.type != "cuda":
        return None
    try:
        from verifier_service.engines import paged_triton
    except ImportError as error:
        _log.warning("attention of few queries runs through torch's kernel: %s", error)
        return None
    apart = True
    for count in _TRIED:
        if not paged_triton.serves(heads, keys, count):
            continue
        ways = paged_triton.attend, _through_torch, keys, heads, count
        try:
            right = agrees(*ways)
            apart = apart and right and agrees_apart(*ways)
        except Exception:
            # A compiler of another release may refuse it: decoding goes on, and the log says how.
            _log.exception("attention of few queries runs through torch's kernel")
            return None
        if not right:
            _log.warning(
                "attention of few queries runs through torch's kernel: with %d queries a sequence "
                "ours computes something else",
                count,
            )
            return None
    return ShortAttention(paged_triton, apart=apart)


def _through_torch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_query: Tensor,
    used: Tensor,
    table: Tensor,
    max_query: int,
    scale: float,
) -> Tensor:
    cu_key = torch.nn.functional.pad(used.cumsum(0), (1, 0)).to(torch.int32)
    layout = StepLayout(
        cu_query,
        cu_query=cu_query,
        cu_key=cu_key,
        used=used,
        table=table,
        max_query=max_query,
        max_key=table.shape[1] * keys.shape[1],
    )
    return attend_pages(query, keys, values, layout, scale, 0)
