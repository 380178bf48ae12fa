"""Paged attention behind transformers' attention interface.

Knows a step's layout (where each sequence's queries and blocks are) and the cache tensors; does
not know tokens, sampling or the model's architecture. Models loaded with
`attn_implementation=IMPLEMENTATION` call `_attention` for every layer with packed queries
[1, heads, total tokens, head size].

The operator finds its engine's state through a handle tensor of each attention module, so that
torch.compile sees an opaque function of tensors and one compiled layer serves all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

IMPLEMENTATION = "outrider_paged"
_HANDLE = "outrider_layer"


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence of a step: queries [first, end) of the pack, at positions from `start` on.

    `slots` are the cache slots of its context of `context` tokens: a slice where its blocks are
    neighbours, else an index tensor. `mask` [group * (end - first), context] is added to the
    scores of a kv head's query heads (`group` of them); None where every query sees everything.
    """

    first: int
    end: int
    start: int
    context: int
    slots: slice | Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where one step reads and writes. `write_slots` [total] int64 are the tokens' cache slots.

    `spans` is the CPU's layout; the tensors behind it are CUDA's: `cu_query` [n+1], `used` [n],
    `table` [n, pages], all int32. With `parts` it has none of these but those of its parts, each
    behind the number of its tokens; their own `write_slots` are the whole step's. `rounds` are
    sequences of few queries that another kernel serves: here they have none.
    """

    write_slots: Tensor
    spans: tuple[SequenceSpan, ...] = ()
    cu_query: Tensor | None = None
    cu_key: Tensor | None = None
    used: Tensor | None = None
    table: Tensor | None = None
    max_query: int = 0
    max_key: int = 0
    parts: tuple[tuple[int, StepLayout], ...] = ()
    rounds: StepLayout | None = None


class PagedCache:
    """Keys and values of all layers, [blocks, block size, kv heads, head size] each."""

    def __init__(
        self,
        layers: list[tuple[int, int]],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`layers` gives (kv heads, head size) of each layer."""
        self.block_size = block_size
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for heads, size in layers:
            shape = (num_blocks, block_size, heads, size)
            self.keys.append(torch.zeros(shape, dtype=dtype, device=device))
            self.values.append(torch.zeros(shape, dtype=dtype, device=device))
        # The same memory by slot: [blocks * block size, kv heads, head size].
        self.flat = [
            (keys.flatten(0, 1), values.flatten(0, 1))
            for keys, values in zip(self.keys, self.values, strict=True)
        ]
        self.layout: StepLayout | None = None
        _caches[id(self)] = self

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, as if one after the other."""
        sources: list[int] = []
        targets: list[int] = []
        written: set[int] = set()
        for source, target in pairs:
            if source in written or target in written:
                self._copy(sources, targets)
                sources, targets = [], []
                written.clear()
            sources.append(source)
            targets.append(target)
            written.add(target)
        self._copy(sources, targets)

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        """All at once: everything is read before anything is written."""
        device = self.keys[0].device
        read = torch.tensor(sources, dtype=torch.int64, device=device)
        write = torch.tensor(targets, dtype=torch.int64, device=device)
        for layer in (*self.keys, *self.values):
            layer.index_copy_(0, write, layer.index_select(0, read))

    def drop(self) -> None:
        """Release the memory."""
        self.keys.clear()
        self.values.clear()
        self.flat.clear()

    def attach(self, model: nn.Module) -> None:
        """Give every attention module of the model its handle: this cache and its layer."""
        for module in model.modules():
            layer = getattr(module, "layer_idx", None)
            if isinstance(layer, int):
                handle = torch.tensor([id(self), layer], dtype=torch.int64)
                module.register_buffer(_HANDLE, handle, persistent=False)


# Caches alive in this process, by the identity that handles carry: the operator has no other way
# to reach its engine's state.
_caches: WeakValueDictionary[int, PagedCache] = WeakValueDictionary()


def _attend(
    query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float, window: int
) -> Tensor:
    """[1, heads, T, size] queries and [1, kv heads, T, size] keys -> [1, T, heads, size]."""
    owner, layer = handle.tolist()
    cache = _caches[owner]
    layout = cache.layout
    if layout is None:
        raise RuntimeError("the model ran outside an engine step")
    keys, values = write_cache(
        cache, layout, layer, key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    tokens = query[0].transpose(0, 1)

    def attend(query: Tensor, part: StepLayout) -> Tensor:
        if part.table is not None:
            pages = cache.keys[layer], cache.values[layer]
            return attend_pages(query, *pages, part, scale, window)
        return attend_spans(query, keys, values, part.spans, scale, window)

    return attend_parts(tokens, layout, attend).contiguous().unsqueeze(0)


def attend_parts(
    query: Tensor, layout: StepLayout, attend: Callable[[Tensor, StepLayout], Tensor]
) -> Tensor:
    """`attend` over queries [T, heads, size] of a layout, or of each of its parts."""
    if not layout.parts:
        return attend(query, layout)
    queries = query.split([count for count, _ in layout.parts])
    return torch.cat(
        [attend(some, part) for some, (_, part) in zip(queries, layout.parts, strict=True)]
    )


def write_cache(
    cache: PagedCache, layout: StepLayout, layer: int, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Store a step's keys and values [T, kv heads, size]; the layer's whole cache by slot."""
    keys, values = cache.flat[layer]
    keys.index_copy_(0, layout.write_slots, key)
    values.index_copy_(0, layout.write_slots, value)
    return keys, values


def attend_spans(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: tuple[SequenceSpan, ...],
    scale: float,
    window: int,
) -> Tensor:
    """[T, heads, size] queries -> [T, heads, size]; sequence by sequence, without a paged kernel.

    The result need not be contiguous.

    Query heads that share a kv head are folded into the query length: one small product for each
    kv head, and nothing is repeated in memory.
    """
    total, heads, size = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    parts = []
    for span in spans:
        length = span.end - span.first
        q = query if length == total else query[span.first : span.end]
        q = q.view(length, kv_heads, group, size)
        q = q.permute(1, 2, 0, 3).reshape(1, kv_heads, group * length, size)
        k = keys[span.slots].unsqueeze(0).transpose(1, 2)
        v = values[span.slots].unsqueeze(0).transpose(1, 2)
        mask = span.mask if window == 0 else _windowed(span, window).repeat(group, 1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        parts.append(o.view(heads, length, -1).transpose(0, 1))
    padding = total - spans[-1].end
    if padding:
        parts.append(query.new_zeros(padding, heads, values.shape[2]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def causal_mask(length: int, start: int, group: int) -> Tensor | None:
    """[group * length, start + length] to add to scores: query i sees positions up to start + i."""
    if length == 1:
        return None
    mask = torch.full((length, start + length), -torch.inf).triu_(start + 1)
    return mask.repeat(group, 1)


def _windowed(span: SequenceSpan, window: int) -> Tensor:
    position = torch.arange(span.start, span.start + span.end - span.first).unsqueeze(1)
    key = torch.arange(span.context).unsqueeze(0)
    seen = (key <= position) & (key > position - window)
    return torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)


def attend_pages(
    query: Tensor, keys: Tensor, values: Tensor, layout: StepLayout, scale: float, window: int
) -> Tensor:
    """[T, heads, size] queries -> [T, heads, size], all sequences in one kernel.

    `keys` and `values` [blocks, block size, kv heads, size] are read through the layout's table.
    Keys are never split between programs whose results are then added: with torch 2.13 the answers
    of several sequences were wrong where they were, and sums would depend on the batch.
    """
    from torch.nn.attention.varlen import varlen_attn

    assert layout.cu_query is not None
    out = varlen_attn(
        query.contiguous(),
        keys,
        values,
        layout.cu_query,
        layout.cu_key,
        layout.max_query,
        layout.max_key,
        scale=scale,
        window_size=(window - 1 if window > 0 else -1, 0),
        enable_gqa=query.shape[1] != keys.shape[2],
        seqused_k=layout.used,
        block_table=layout.table,
        num_splits=1,
    )
    assert isinstance(out, Tensor)
    return out


def _attend_shape(
    query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float, window: int
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


_library = torch.library.Library("outrider", "FRAGMENT")
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor handle, float scale, int window)"
    " -> Tensor"
)
_library.impl("attend", _attend, "CPU")
_library.impl("attend", _attend, "CUDA")
torch.library.register_fake("outrider::attend", _attend_shape, lib=_library)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. Raises ValueError for scores this engine cannot form."""
    if softcap is not None or s_aux is not None:
        what = "soft-capped attention scores" if softcap is not None else "attention sinks"
        raise ValueError(f"{type(module).__name__} asks for {what}: not supported by this engine")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    handle = getattr(module, _HANDLE)
    out = torch.ops.outrider.attend(query, key, value, handle, scale, sliding_window or 0)
    return out, None


def _no_mask(*_: Any, **__: Any) -> None:
    """Masks are the step layout's business."""


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _no_mask)
