"""Noise that a target and its proposers share without talking: a function of three counters.

Gumbel noise g(seed, position, token id) for the coupled rule (Daliri, Musco and Suresh,
arXiv 2408.07978), and the private streams of the other rules. Knows numpy only, so that
proposers need no torch; `verifier_service.noise` computes the same bits with tensors.

`position` is absolute: the number of ids (prompt and output) before the token to be chosen.

The bits, in unsigned arithmetic (all constants below):

    key64 = mix64(mix64((seed ^ stream) + GOLDEN) + position * GOLDEN)      splitmix64's finaliser
    k0, k1 = low and high half of key64
    x = mix32(token id) ^ k0                                                a 32-bit finaliser
    x ^= x >> 16;  x *= MIX32_A;  x ^= k1;  x ^= x >> 15;  x *= MIX32_B;  x ^= x >> 16

Read as a signed number b, they give v = |b| * BITS_SCALE + BITS_FLOOR in (0, 1), then an
exponential variable E = -log(1 - v) and the Gumbel noise -log E. Small v, which is where large
noise comes from, keeps the full precision of float32. The integer part is identical on every
machine; the logarithms may differ in the last bit.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
MIX64_A = 0xBF58476D1CE4E5B9
MIX64_B = 0x94D049BB133111EB
MIX32_A = 0x7FEB352D
MIX32_B = 0x846CA68B
# The factor keeps v below 1 after rounding to float32; the floor keeps it above 0.
BITS_SCALE = 2.0**-31 * (1 - 2.0**-24)
BITS_FLOOR = 2.0**-33

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class Stream(IntEnum):
    """Independent noise for different uses of the same (seed, position)."""

    # Added by target and proposer alike under the coupled rule.
    SHARED = 0
    # Acceptance tests of the standard and block rules.
    ACCEPT = 0x3C6EF372FE94F82B
    # Resampled and bonus tokens of the standard and block rules.
    RESAMPLE = 0x510E527FADE682D1
    # A proposer's own sampling from a q that it sends.
    DRAFT = 0x1F83D9ABFB41BD6B


def keys(
    seed: npt.ArrayLike, position: npt.ArrayLike, stream: Stream = Stream.SHARED
) -> tuple[IntArray, IntArray]:
    """Two int32 keys for each (signed 64-bit seed, position) pair; arguments broadcast."""
    seeds = np.atleast_1d(np.asarray(seed, dtype=np.int64)).view(np.uint64)
    positions = np.atleast_1d(np.asarray(position, dtype=np.int64)).view(np.uint64)
    z = _mix64((seeds ^ np.uint64(stream)) + np.uint64(GOLDEN))
    z = _mix64(z + positions * np.uint64(GOLDEN))
    low = (z & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    high = (z >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return low, high


def bits(key: tuple[IntArray, IntArray], token_ids: npt.ArrayLike) -> IntArray:
    """Noise bits, int32 [..., n], of key halves [...] and token ids [n] or [..., n]."""
    low, high = (half.view(np.uint32)[..., None] for half in key)
    ids = np.atleast_1d(np.asarray(token_ids, dtype=np.int64)).astype(np.uint32)
    x = _mix32(ids) ^ low
    x ^= x >> np.uint32(16)
    x *= np.uint32(MIX32_A)
    x ^= high
    x ^= x >> np.uint32(15)
    x *= np.uint32(MIX32_B)
    x ^= x >> np.uint32(16)
    return x.view(np.int32)


def exponential(noise_bits: IntArray) -> FloatArray:
    """Exponential variables of rate 1, float32, of the same shape."""
    v = np.abs(noise_bits.astype(np.float32))
    v *= np.float32(-BITS_SCALE)
    v -= np.float32(BITS_FLOOR)
    return -np.log1p(v)


def gumbel(
    seed: npt.ArrayLike,
    position: npt.ArrayLike,
    token_ids: npt.ArrayLike,
    stream: Stream = Stream.SHARED,
) -> FloatArray:
    """Gumbel noise, float32 [rows, n], of seeds and positions [rows] and ids [n] or [rows, n].

    A proposer drafts the argmax of log q plus this noise; so does the target with its own p.
    """
    return -np.log(exponential(bits(keys(seed, position, stream), token_ids)))


def _mix64(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX64_A)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX64_B)
    return z ^ (z >> np.uint64(31))


def _mix32(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(MIX32_A)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(MIX32_B)
    return x ^ (x >> np.uint32(16))
