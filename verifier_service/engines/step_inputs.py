"""A captured step's inputs and the memory that they lie in, the host's half and the device's.

Knows names, kinds and places; does not know what is written there. The host's half is pinned and
one piece, so that a step's inputs travel in one copy that nobody waits for. Where each input lies
does not depend on the bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verifier_service.engines.buckets import Bucket

# Compiled code and kernels have versions of their own for memory that is not aligned.
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One bucket's inputs, views of the device's memory; T tokens, B sequences, W pages.

    int64: `ids`, `positions`, `slots` (of the cache), `owner` (sequence of a token) [T]; `seeds`,
    `drafts` (draft tokens), `top_k` (0 for no limit) [B]. int32: `cu_query`, `cu_key` [B + 1],
    `used` (keys that a sequence sees) [B], `table` [B, W]. float32: `temperature` (0 for greedy),
    `top_p`, `min_p` (1 and 0 for no limit) [B].

    Where a bucket lists the tokens that have logits: `rows` int64 [R], indices into T, and
    `cu_rows` int32 [B + 1]. `rows` is empty where all have.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    owner: Tensor
    seeds: Tensor
    drafts: Tensor
    top_k: Tensor
    cu_query: Tensor
    cu_key: Tensor
    used: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    rows: Tensor
    cu_rows: Tensor
    table: Tensor


_NAMES = tuple(field.name for field in fields(StepInputs))
_OF_BOUNDS = frozenset(("cu_query", "cu_key", "cu_rows"))
# The members of each of these lie one behind the other and have one size, so as to be one array.
_TOKENS = ("ids", "positions", "slots", "owner")
_CONTEXTS = ("cu_query", "cu_key", "used")
_INT32 = frozenset(("cu_query", "cu_key", "cu_rows", "used", "table"))
_FLOAT32 = frozenset(("temperature", "top_p", "min_p"))


class StepMemory:
    """Both halves, for at most `sequences`, `tokens` and as many `pages` of a sequence.

    `arrays` are the host's, by names. `of_tokens` are those of `StepInputs` that are [T], `ids`
    first, as the rows of one; so are `contexts`: `cu_query`, `cu_key` and `used`, which has one
    number more than anybody reads.
    """

    def __init__(self, sequences: int, tokens: int, pages: int, device: torch.device) -> None:
        shapes: dict[str, tuple[int, ...]] = {}
        for name in _NAMES:
            shapes[name] = (sequences,)
            if name in _TOKENS or name == "rows":
                shapes[name] = (tokens,)
            elif name in _OF_BOUNDS or name in _CONTEXTS:
                shapes[name] = (sequences + 1,)
        shapes["table"] = (sequences, pages)
        places, size = _places(shapes)
        pinned = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        self._device = torch.zeros_like(self._host, device=device) if pinned else self._host
        self._inputs = {name: _view(self._device, name, *places[name], shapes) for name in _NAMES}
        self.arrays: dict[str, npt.NDArray[Any]] = {
            name: _view(self._host, name, *places[name], shapes).numpy() for name in _NAMES
        }
        self.of_tokens = self._together(_TOKENS, places)
        self.contexts = self._together(_CONTEXTS, places)

    def inputs(self, bucket: Bucket) -> StepInputs:
        """The device's memory, as this bucket reads it."""
        sizes = {
            name: bucket.tokens if name in _TOKENS else bucket.sequences + (name in _OF_BOUNDS)
            for name in _NAMES
        }
        sizes["rows"] = bucket.rows
        return StepInputs(**{name: self._inputs[name][: sizes[name]] for name in _NAMES})

    def copy(self) -> None:
        """Start the copy from the host to the device."""
        self._device.copy_(self._host, non_blocking=True)

    def _together(
        self, names: Sequence[str], places: dict[str, tuple[int, int]]
    ) -> npt.NDArray[Any]:
        """Arrays of the host's half that lie one behind the other, as the rows of one."""
        first = self.arrays[names[0]]
        begin = places[names[0]][0]
        stride = places[names[1]][0] - begin
        return np.ndarray(
            (len(names), len(first)),
            first.dtype,
            self._host[begin:].numpy(),
            strides=(stride, first.itemsize),
        )


def _places(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, int]], int]:
    """First and last byte of each input, and the size of all."""
    places, end = {}, 0
    for name, shape in shapes.items():
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + int(np.prod(shape)) * _kind(name).itemsize
        places[name] = begin, end
    return places, end


def _view(
    memory: Tensor, name: str, begin: int, end: int, shapes: dict[str, tuple[int, ...]]
) -> Tensor:
    return memory[begin:end].view(_kind(name)).view(shapes[name])


def _kind(name: str) -> torch.dtype:
    if name in _INT32:
        return torch.int32
    return torch.float32 if name in _FLOAT32 else torch.int64
