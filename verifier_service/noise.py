"""The noise of `outrider.coupling` as tensors: same bits, any device, no host sync.

Knows keys, words and logarithms, and how to choose with them; does not know logits' meaning,
requests or rules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider import coupling
from outrider.coupling import (
    BITS_FLOOR,
    BITS_SCALE,
    FINE_BITS,
    GOLDEN,
    GROUP_SIZE,
    GROUPS_FROM,
    MIX32_A,
    MIX32_B,
    MIX64_A,
    MIX64_B,
    Stream,
)
from outrider.perturbed_argmax import PerturbedArgmax

Keys = tuple[Tensor, Tensor]

# Rows whose whole noise is made at once where it is made, to bound memory.
_DENSE_ROWS = 256


def row_keys(seed: Tensor, position: Tensor, stream: Stream = Stream.SHARED) -> Keys:
    """Both int32 key halves of each row, from int64 seeds and absolute positions [R]."""
    if seed.device.type == "cpu":
        low, high = coupling.keys(seed.numpy(), position.numpy(), stream)
        return torch.from_numpy(low.view("int32")), torch.from_numpy(high.view("int32"))
    return tensor_keys(seed, position, stream)


def tensor_keys(seed: Tensor, position: Tensor, stream: Stream = Stream.SHARED) -> Keys:
    """`row_keys` by tensor operations alone."""
    z = _mix64((seed ^ _signed64(stream)) + _signed64(GOLDEN))
    z = _mix64(z + position * _signed64(GOLDEN))
    return z.to(torch.int32), (z >> 32).to(torch.int32)


def hashes(numbers: Tensor) -> Tensor:
    """The part of a word that depends on its number alone, int32, of int64 numbers."""
    x = numbers.to(torch.int32)
    x = (x ^ _shift(x, 16)) * _signed32(MIX32_A)
    x = (x ^ _shift(x, 15)) * _signed32(MIX32_B)
    return x ^ _shift(x, 16)


def words(keys: Keys, number_hashes: Tensor) -> Tensor:
    """Words, int32 [R, n], of keys [R] and number hashes [n] or [R, n]."""
    low, high = keys
    x = number_hashes ^ low.unsqueeze(-1)
    x = (x ^ _shift(x, 16)) * _signed32(MIX32_A)
    x = x ^ high.unsqueeze(-1)
    x = (x ^ _shift(x, 15)) * _signed32(MIX32_B)
    return x ^ _shift(x, 16)


def uniform(word: Tensor) -> Tensor:
    """Uniform variables strictly inside (0, 1), float64, from words."""
    return ((word.to(torch.int64) & 0xFFFFFFFF).to(torch.float64) + 0.5) * 2.0**-32


def exponential(bits: Tensor) -> Tensor:
    """Exponential variables of rate 1, float32, from noise bits."""
    return -torch.log1p(bits.to(torch.float32) * -BITS_SCALE - BITS_FLOOR)


class VocabularyNoise:
    """Noise over one vocabulary on one device, and the choices made with it.

    On the CPU choices skip most of the noise (`outrider.perturbed_argmax`); elsewhere, or where
    `prune` says no, they make all of it, with shapes that depend on the number of rows alone.
    """

    def __init__(
        self, vocab_size: int, device: torch.device | str = "cpu", prune: bool = True
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        ids = torch.arange(vocab_size, device=self.device)
        groups = torch.arange(-(-vocab_size // GROUP_SIZE), device=self.device)
        self._ids = hashes(ids)
        self._groups = hashes(groups + GROUPS_FROM)
        pruned = prune and self.device.type == "cpu"
        self._pruned = PerturbedArgmax(vocab_size) if pruned else None

    def bits(self, keys: Keys) -> Tensor:
        """Noise bits of every token, int32 [R, V]."""
        lead = words(keys, self._groups).view(torch.uint8)[:, : self.vocab_size]
        fine = _shift(words(keys, self._ids), 32 - FINE_BITS)
        return (lead.to(torch.int32) << FINE_BITS) | fine

    def exponential(self, keys: Keys) -> Tensor:
        """Exponential noise of every token, float32 [R, V]."""
        return exponential(self.bits(keys))

    def of_scores(self, scores: Tensor, keys: Keys) -> Tensor:
        """argmax over v of scores[r, v] - log E[r, v], int64 [R]: v with probability ~ e^score."""
        if self._pruned is not None:
            chosen = self._pruned.of_scores(scores.numpy(), _numpy(keys))
            return torch.from_numpy(chosen)
        parts = [
            (scores[part] - self.exponential(_part(keys, part)).log()).argmax(dim=-1)
            for part in _parts(scores.shape[0])
        ]
        return torch.cat(parts)

    def of_weights(self, weights: Tensor, keys: Keys) -> Tensor:
        """argmax over v of weights[r, v] / E[r, v], int64 [R]: v with probability ~ its weight.

        Weights are at least 0, one of each row above 0; they need not be normalised.
        """
        if self._pruned is not None:
            chosen = self._pruned.of_weights(weights.numpy(), _numpy(keys))
            return torch.from_numpy(chosen)
        parts = [
            (weights[part] / self.exponential(_part(keys, part))).argmax(dim=-1)
            for part in _parts(weights.shape[0])
        ]
        return torch.cat(parts)


def _parts(rows: int) -> list[slice]:
    return [slice(at, at + _DENSE_ROWS) for at in range(0, max(rows, 1), _DENSE_ROWS)]


def _part(keys: Keys, part: slice) -> Keys:
    return keys[0][part], keys[1][part]


def _numpy(keys: Keys) -> coupling.Keys:
    return keys[0].numpy().view("uint32"), keys[1].numpy().view("uint32")


def _shift(x: Tensor, by: int) -> Tensor:
    # Shifts of signed numbers copy the sign; the hash is defined on unsigned ones.
    return (x >> by) & ((1 << (32 - by)) - 1)


def _mix64(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed64(MIX64_A)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed64(MIX64_B)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _signed64(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else int(value)


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
