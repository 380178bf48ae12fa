"""The q that a sampling proposer sends: truncated, normalised, quantised, and only then sampled.

Knows numpy only. Because the draft is drawn from the integers themselves, the q on the wire is
exactly the q it came from, on every machine and in every precision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.coupling import Stream, hashes, keys, words

# Masses of one distribution sum to this.
TOTAL_MASS = 1 << 32

IntArray = npt.NDArray[np.int64]


def quantise(probabilities: npt.ArrayLike, max_entries: int) -> tuple[IntArray, IntArray]:
    """Token ids and masses of the `max_entries` most likely tokens, most likely first.

    `probabilities` [V], non-negative, need not sum to 1. Masses are positive and sum to 2^32;
    what rounding leaves over goes to the most likely token. Raises ValueError on bad input.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"probabilities: shape {p.shape}, must be one non-empty row")
    if max_entries < 1:
        raise ValueError(f"max_entries {max_entries}: must be at least 1")
    if not np.all(np.isfinite(p)) or np.any(p < 0) or p.sum() <= 0:
        raise ValueError("probabilities must be finite, non-negative and not all zero")
    ids = np.argsort(-p, kind="stable")[:max_entries].astype(np.int64)
    kept = p[ids]
    masses = np.floor(kept / kept.sum() * TOTAL_MASS).astype(np.int64)
    masses[0] += TOTAL_MASS - masses.sum()
    used = masses > 0
    return ids[used], masses[used]


def sample(masses: npt.ArrayLike, seed: int, base_length: int, offset: int) -> int:
    """Index into one quantised distribution, drawn for draft token `offset` of a block.

    Keyed by the committed length that the block continues, not only by the token's position:
    under the block rule a rejected draft token tells something about the draws behind it, so a
    new block at the same position must draw anew.
    """
    return int(sample_rows(np.asarray(masses)[None], [seed], [base_length], offset)[0])


def sample_rows(
    masses: npt.ArrayLike, seed: npt.ArrayLike, base_length: npt.ArrayLike, offset: int
) -> IntArray:
    """`sample` for many rows: masses [rows, N] (zeros pad), seeds and base lengths [rows]."""
    draw = words(keys(seed, base_length, Stream.DRAFT), hashes(offset))
    cumulative = np.cumsum(np.asarray(masses, dtype=np.int64), axis=-1)
    index: IntArray = (cumulative <= draw.astype(np.int64)[:, None]).sum(axis=-1, dtype=np.int64)
    return index
