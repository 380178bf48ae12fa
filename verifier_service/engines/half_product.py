"""Products of float32 rows with weights packed in half precision (FBGEMM): each row's own bits.

Knows rows and packed weights; does not know layers. FBGEMM cuts rows into blocks, and on processors
without AVX-512 a block of one row or two adds up in another order than a larger one. A row's result
would depend on how many rows stand beside it, and plain decoding, of one row, would differ from a
verification in the last bits. So rows that nobody reads are added where there is such a block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# FBGEMM cuts off so many rows at a time; what is left over is cut into blocks of up to six.
_CHUNK = 120
# A block of so many takes no longer than one of one, and is one of the larger ones.
_FEW = 4
_INPUTS, _OUTPUTS = 48, 32

_product = torch.ops.quantized.linear_dynamic_fp16.default


def half_product(rows: Tensor, packed: torch.ScriptObject) -> Tensor:
    """[rows, in] float32 times packed weights -> [rows, out] float32."""
    count = rows.shape[0]
    padded = padded_count(count, _counts())
    if padded == count:
        y: Tensor = _product(rows, packed)
        return y
    more = rows.expand(padded, -1) if count == 1 else F.pad(rows, (0, 0, 0, padded - count))
    y = _product(more, packed)
    return y[:count]


def least_rows() -> int:
    """The fewest rows that need no others beside them."""
    return _counts()[1]


def padded_count(count: int, counts: tuple[int, ...]) -> int:
    """With how many rows `count` of them are multiplied; `counts` as `counts_of`."""
    whole = count // _CHUNK * _CHUNK
    return whole + counts[count - whole]


def counts_of(product: Callable[[Tensor], Tensor], inputs: int) -> tuple[int, ...]:
    """By numbers of rows, up to a chunk: the next one that gives all of them a large block's bits.

    `product` takes [rows, inputs].
    """
    row = torch.linspace(-1, 1, inputs).unsqueeze(0)
    wanted = product(row.repeat(_CHUNK, 1))[:1]

    def is_even(count: int) -> bool:
        return bool((product(row.repeat(count, 1)) == wanted).all())

    counts = [_CHUNK]
    for count in range(_CHUNK - 1, 0, -1):
        counts.append(count if is_even(count) else counts[-1])
    counts.append(0)
    counts.reverse()
    # Where one row is a case of its own.
    if counts[1] != 1:
        for count in range(1, _FEW):
            counts[count] = counts[_FEW]
    return tuple(counts)


@cache
def _counts() -> tuple[int, ...]:
    """Of this processor."""
    weight = torch.sin(torch.arange(float(_INPUTS * _OUTPUTS))).view(_OUTPUTS, _INPUTS)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    return counts_of(lambda rows: _product(rows, packed), _INPUTS)
