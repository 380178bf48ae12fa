"""The shared noise is uniform, independent across its three counters, and fixed for ever."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from outrider.coupling import (
    Stream,
    exponential,
    gumbel,
    hashes,
    keys,
    noise_bits,
    words,
)

VOCABULARY = np.arange(1 << 15)
GOLDEN_KEYS = [874429812, 839028560]
GOLDEN_BITS = [990440398, 17641088, 696662995, 1868295003, 193228105, 519614864, 1366801807]
GOLDEN_NEGATIVE = [1945091587, 607673572]


def grid(
    seed: npt.ArrayLike, position: npt.ArrayLike, stream: Stream = Stream.SHARED
) -> npt.NDArray[np.floating]:
    """Uniforms in (0, 1), [rows, V], as the noise sees them."""
    low, high = keys(seed, position, stream)
    return (noise_bits((low[:, None], high[:, None]), VOCABULARY) + 0.5) / 2.0**31


def chi_square(counts: npt.NDArray[np.int64]) -> float:
    """Standardised chi-square of equal expectations: about N(0, 1)."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float((statistic - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1)))


def correlation(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> float:
    """Pearson correlation times the square root of the sample size: about N(0, 1)."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1] * np.sqrt(a.size))


@pytest.mark.parametrize("bins", [256, 1000, 1 << 16])
def test_noise_is_uniform(bins: int) -> None:
    u = grid(np.arange(64), 3 * np.arange(64))
    assert abs(chi_square(np.bincount((u * bins).astype(np.int64).ravel(), minlength=bins))) < 4


@pytest.mark.parametrize("bits", [8, 12])
def test_low_bits_are_uniform(bits: int) -> None:
    low, high = keys(np.arange(32), 5)
    b = noise_bits((low[:, None], high[:, None]), VOCABULARY) & ((1 << bits) - 1)
    assert abs(chi_square(np.bincount(b.ravel(), minlength=1 << bits))) < 4


def test_largest_gap_to_uniform_is_small() -> None:
    """Kolmogorov and Smirnov: 1.95 is the 0.1 % point."""
    u = np.sort(grid(np.arange(16), 100).ravel())
    steps = np.arange(u.size)
    gap = max(float((u - steps / u.size).max()), float(((steps + 1) / u.size - u).max()))
    assert gap * np.sqrt(u.size) < 1.95


@pytest.mark.parametrize("shift", [1, 2, 3, 4, 8, 4096])
def test_nearby_ids_are_independent(shift: int) -> None:
    u = grid(np.arange(32), 17)
    assert abs(correlation(u[:, :-shift], u[:, shift:])) < 4
    pairs = (u[:, :-shift] * 16).astype(np.int64) * 16 + (u[:, shift:] * 16).astype(np.int64)
    assert abs(chi_square(np.bincount(pairs.ravel(), minlength=256))) < 4


@pytest.mark.parametrize(
    ("seed_step", "position_step"), [(1, 0), (0, 1), (1, 1), (1, -1), (1 << 32, 0), (0, 1 << 10)]
)
def test_neighbouring_rows_are_independent(seed_step: int, position_step: int) -> None:
    seeds, positions = np.arange(40), np.arange(40) + 2000
    a, b = grid(seeds, positions), grid(seeds + seed_step, positions + position_step)
    assert abs(correlation(a, b)) < 4
    # Tails decide argmaxes, so look at them too.
    assert abs(correlation(np.log(a), np.log(b))) < 4
    pairs = (a * 16).astype(np.int64) * 16 + (b * 16).astype(np.int64)
    assert abs(chi_square(np.bincount(pairs.ravel(), minlength=256))) < 4


def test_one_token_over_seeds_and_over_positions_is_uniform() -> None:
    """A token's noise along a text, and across requests, is as good as along the vocabulary."""
    counter = np.arange(1 << 16)
    for seed, position in ((counter, 9), (9, counter), (counter * 1_000_003, 0)):
        u = (noise_bits(keys(seed, position), 1234) + 0.5) / 2.0**31
        assert abs(chi_square(np.bincount((u * 256).astype(np.int64), minlength=256))) < 4
        assert abs(correlation(u[:-1], u[1:])) < 4


def test_streams_are_independent() -> None:
    assert len(Stream.__members__) == len({int(stream) for stream in Stream}) == 4
    rows = {stream: grid(np.arange(16), 30, stream) for stream in Stream}
    for a in Stream:
        for b in Stream:
            if a < b:
                assert abs(correlation(rows[a], rows[b])) < 4


def test_sums_of_positions_and_seeds_do_not_collide() -> None:
    """No two of 250,000 (seed, position) pairs share their key."""
    low, high = keys(np.repeat(np.arange(500), 500), np.tile(np.arange(500), 500))
    joined = low.astype(np.uint64) << np.uint64(32) | high
    assert np.unique(joined).size == joined.size


@pytest.mark.parametrize("counter", ["seed", "position"])
def test_every_bit_of_a_counter_flips_half_of_the_key(counter: str) -> None:
    base = np.random.default_rng(0).integers(-(2**62), 2**62, size=4000)
    for bit in range(63):
        flipped = base ^ (1 << bit)
        one = keys(base, 5) if counter == "seed" else keys(5, base)
        two = keys(flipped, 5) if counter == "seed" else keys(5, flipped)
        for a, b in zip(one, two, strict=True):
            share = np.unpackbits((a ^ b).view(np.uint8)).mean()
            assert abs(share - 0.5) < 0.01


def test_every_bit_of_a_token_id_flips_half_of_the_word() -> None:
    ids = np.random.default_rng(1).integers(0, 1 << 17, size=20_000)
    key = keys(12, 34)
    for bit in range(17):
        changed = words(key, hashes(ids)) ^ words(key, hashes(ids ^ (1 << bit)))
        per_bit = np.unpackbits(changed.view(np.uint8)).reshape(-1, 32).mean(axis=0)
        assert np.abs(per_bit - 0.5).max() < 0.02


def test_seed_sign_and_size_matter() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 2**32]
    rows = gumbel(seeds, 0, np.arange(8))
    assert np.unique(rows, axis=0).shape[0] == len(seeds)


def test_noise_is_gumbel() -> None:
    g = gumbel(np.arange(64), 1, VOCABULARY).astype(np.float64)
    assert abs(g.mean() - np.euler_gamma) < 4 * np.pi / np.sqrt(6 * g.size)
    assert abs(g.var() - np.pi**2 / 6) < 0.01


def test_upper_tail_is_precise() -> None:
    """Large noise is as frequent as it must be, and takes many values."""
    g = gumbel(np.arange(256), 1, VOCABULARY)
    for level in (6.0, 9.0, 12.0):
        expected = g.size * -np.expm1(-np.exp(-level))
        assert abs(int((g > level).sum()) - expected) < 4 * np.sqrt(expected)
    assert np.unique(g[g > 9.0]).size > 0.99 * (g > 9.0).sum()


def test_extreme_bits_stay_finite() -> None:
    e = exponential(np.array([0, 1, 2**31 - 2, 2**31 - 1], dtype=np.uint32))
    assert np.all(np.isfinite(np.log(e)))
    assert np.all(np.diff(e) >= 0)
    assert e[0] == pytest.approx(2.0**-32)


def test_argmax_of_perturbed_logits_follows_softmax() -> None:
    logits = np.array([1.0, 0.0, -1.0, 2.0, -3.0])
    draws = 200_000
    g = gumbel(np.arange(draws), 77, np.arange(5))
    counts = np.bincount((logits + g).argmax(axis=1), minlength=5)
    p = np.exp(logits) / np.exp(logits).sum()
    statistic = ((counts - draws * p) ** 2 / (draws * p)).sum()
    assert statistic < 18.5  # 0.1 % point of chi-square with 4 degrees of freedom


def test_bits_never_change() -> None:
    """Target and proposers of different releases share them: new values need a new protocol."""
    assert [int(half[0]) for half in keys(42, 7)] == GOLDEN_KEYS
    assert noise_bits(keys(42, 7), [0, 1, 2, 3, 4, 49151, 151935]).tolist() == GOLDEN_BITS
    assert noise_bits(keys(-5, 100_000), [0, 65]).tolist() == GOLDEN_NEGATIVE


def test_module_needs_no_torch() -> None:
    code = "import sys, outrider.perturbed_argmax, outrider.sparse_q; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b"False"
