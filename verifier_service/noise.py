"""The noise of `outrider.coupling` as tensors: same bits, any device, no host sync.

Knows keys, bits and logarithms; does not know logits, requests or rules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.coupling import (
    BITS_FLOOR,
    BITS_SCALE,
    GOLDEN,
    MIX32_A,
    MIX32_B,
    MIX64_A,
    MIX64_B,
    Stream,
)

Keys = tuple[Tensor, Tensor]


def row_keys(seed: Tensor, position: Tensor, stream: Stream = Stream.SHARED) -> Keys:
    """Two int32 keys of each row, from int64 seeds and absolute positions of one shape."""
    z = _mix64((seed ^ _signed64(stream)) + _signed64(GOLDEN))
    z = _mix64(z + position * _signed64(GOLDEN))
    return z.to(torch.int32), (z >> 32).to(torch.int32)


def token_hash(token_ids: Tensor) -> Tensor:
    """The part of the noise bits that depends on the token id alone, int32."""
    x = token_ids.to(torch.int32)
    x = (x ^ _shift(x, 16)) * _signed32(MIX32_A)
    x = (x ^ _shift(x, 15)) * _signed32(MIX32_B)
    return x ^ _shift(x, 16)


def noise_bits(keys: Keys, hashes: Tensor) -> Tensor:
    """Noise bits, int32 [..., n], of keys [...] and token hashes [n] or [..., n]."""
    low, high = keys
    x = hashes ^ low.unsqueeze(-1)
    x = (x ^ _shift(x, 16)) * _signed32(MIX32_A)
    x = x ^ high.unsqueeze(-1)
    x = (x ^ _shift(x, 15)) * _signed32(MIX32_B)
    return x ^ _shift(x, 16)


def exponential(bits: Tensor) -> Tensor:
    """Exponential variables of rate 1, float32, from noise bits."""
    return -torch.log1p(bits.to(torch.float32).abs() * -BITS_SCALE - BITS_FLOOR)


def uniform(bits: Tensor) -> Tensor:
    """Uniform variables strictly inside (0, 1), float64, from noise bits."""
    return ((bits.to(torch.int64) & 0xFFFFFFFF).to(torch.float64) + 0.5) * 2.0**-32


class NoiseBuffers:
    """Room for the noise of a few rows of the vocabulary, reused by every call.

    The eager path makes about twenty passes over these buffers; keeping them small keeps them
    in cache, and reusing them keeps the allocator's page faults out of a decode step.
    `rows` bounds how many rows are worked on at once, not how many a caller may have.
    """

    def __init__(
        self, vocab_size: int, device: torch.device | str = "cpu", rows: int | None = None
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size {vocab_size}: must be at least 1")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        if rows is None:
            rows = 5 if self.device.type == "cpu" else 256
        self.rows = rows
        self.hashes = token_hash(torch.arange(vocab_size, device=self.device))
        self._bits = torch.empty(rows, vocab_size, dtype=torch.int32, device=self.device)
        self._scratch = torch.empty_like(self._bits)

    def exponential(self, keys: Keys) -> Tensor:
        """Exponential noise, float32 [rows, V], valid until the next call; keys [rows]."""
        low, high = (half.unsqueeze(-1) for half in keys)
        count = low.shape[0]
        x, t = self._bits[:count], self._scratch[:count]
        torch.bitwise_xor(self.hashes, low, out=x)
        _xor_shift_(x, t, 16)
        x.mul_(_signed32(MIX32_A))
        x.bitwise_xor_(high)
        _xor_shift_(x, t, 15)
        x.mul_(_signed32(MIX32_B))
        _xor_shift_(x, t, 16)
        noise = t.view(torch.float32)
        noise.copy_(x)
        noise.abs_().mul_(-BITS_SCALE).sub_(BITS_FLOOR)
        return noise.log1p_().neg_()


def _xor_shift_(x: Tensor, scratch: Tensor, by: int) -> None:
    torch.bitwise_right_shift(x, by, out=scratch)
    # Shifts of signed numbers copy the sign; the hash is defined on unsigned ones.
    scratch.bitwise_and_((1 << (32 - by)) - 1)
    x.bitwise_xor_(scratch)


def _shift(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (32 - by)) - 1)


def _mix64(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed64(MIX64_A)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed64(MIX64_B)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _signed64(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else int(value)


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
