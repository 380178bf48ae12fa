"""Noise that a target and its proposers share without talking: a function of three counters.

Gumbel noise g(seed, position, token id) for the coupled rule (Daliri, Musco and Suresh,
arXiv 2408.07978), and the private streams of the other rules. Knows numpy only, so that
proposers need no torch; `verifier_service.noise` computes the same bits with tensors.

`position` is absolute: the number of ids (prompt and output) before the token to be chosen.

In unsigned arithmetic, with the constants below:

    key64 = mix64(mix64((seed ^ stream) + GOLDEN) + position * GOLDEN)      splitmix64's finaliser
    k0, k1 = low and high half of key64
    word(n): x = mix32(n) ^ k0                                              a 32-bit finaliser
             x ^= x >> 16;  x *= MIX32_A;  x ^= k1;  x ^= x >> 15;  x *= MIX32_B;  x ^= x >> 16
    bits(t) = byte t % 4 of word(2^31 + t / 4), above the upper 23 bits of word(t)

The 31 bits b give v = b * BITS_SCALE + BITS_FLOOR in (0, 1), an exponential variable
E = -log(1 - v) and the Gumbel noise -log E. Small v, where large noise comes from, keeps the
full precision of float32. Four tokens share a word for their leading bytes so that whoever looks
for the largest noise hashes a quarter of the vocabulary (`outrider.perturbed_argmax`). The bits
are identical on every machine; the logarithms may differ in their last place.
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
# Words of leading bytes are numbered from here; token ids stay below.
GROUPS_FROM = 1 << 31
GROUP_SIZE = 4
FINE_BITS = 23
# The factor keeps v below 1 after rounding to float32; the floor keeps it above 0.
BITS_SCALE = 2.0**-31 * (1 - 2.0**-24)
BITS_FLOOR = 2.0**-32

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
Keys = tuple[Words, Words]


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


def keys(seed: npt.ArrayLike, position: npt.ArrayLike, stream: Stream = Stream.SHARED) -> Keys:
    """Both key halves of each (signed 64-bit seed, position) pair; arguments broadcast to [R]."""
    seeds = np.atleast_1d(np.asarray(seed, dtype=np.int64)).view(np.uint64)
    positions = np.atleast_1d(np.asarray(position, dtype=np.int64)).view(np.uint64)
    z = _mix64((seeds ^ np.uint64(stream)) + np.uint64(GOLDEN))
    z = _mix64(z + positions * np.uint64(GOLDEN))
    return z.astype(np.uint32), (z >> np.uint64(32)).astype(np.uint32)


def hashes(numbers: npt.ArrayLike) -> Words:
    """The part of a word that depends on its number alone; numbers below 2^32."""
    x = np.atleast_1d(np.asarray(numbers, dtype=np.int64)).astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(MIX32_A)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(MIX32_B)
    return x ^ (x >> np.uint32(16))


def words(
    key: Keys, number_hashes: Words, out: Words | None = None, scratch: Words | None = None
) -> Words:
    """Words [..., n] of keys that broadcast against hashes, by the caller's own axes.

    `out` and `scratch`, of the result's shape, save the allocations.
    """
    x = np.bitwise_xor(number_hashes, key[0], out=out)
    t = np.right_shift(x, np.uint32(16), out=scratch)
    x ^= t
    x *= np.uint32(MIX32_A)
    x ^= key[1]
    np.right_shift(x, np.uint32(15), out=t)
    x ^= t
    x *= np.uint32(MIX32_B)
    np.right_shift(x, np.uint32(16), out=t)
    x ^= t
    return x


def noise_bits(key: Keys, token_ids: npt.ArrayLike) -> Words:
    """31 noise bits of each token; keys and ids broadcast against each other."""
    ids = np.atleast_1d(np.asarray(token_ids, dtype=np.int64))
    lead = words(key, hashes(GROUPS_FROM + ids // GROUP_SIZE))
    lead = (lead >> (ids % GROUP_SIZE * 8).astype(np.uint32)) & np.uint32(0xFF)
    fine = words(key, hashes(ids)) >> np.uint32(32 - FINE_BITS)
    return (lead << np.uint32(FINE_BITS)) | fine


def exponential(bits: Words) -> Floats:
    """Exponential variables of rate 1, float32, from noise bits."""
    v = bits.astype(np.float32)
    v *= np.float32(-BITS_SCALE)
    v -= np.float32(BITS_FLOOR)
    return -np.log1p(v)


def gumbel(
    seed: npt.ArrayLike,
    position: npt.ArrayLike,
    token_ids: npt.ArrayLike,
    stream: Stream = Stream.SHARED,
) -> Floats:
    """Gumbel noise, float32 [R, n], of seeds and positions [R] and token ids [n] or [R, n]."""
    low, high = keys(seed, position, stream)
    return -np.log(exponential(noise_bits((low[:, None], high[:, None]), token_ids)))


def _mix64(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX64_A)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX64_B)
    return z ^ (z >> np.uint64(31))
