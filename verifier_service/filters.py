"""Top-k and top-p as thresholds on logits; see `verifier_service.sampling` for the definitions.

On the CPU rows are cut one by one with numpy, whose selection and sort are vectorised, and
top-p sorts only tokens that can matter. On other devices a sort of all rows keeps shapes fixed
and the host out of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatRow = npt.NDArray[np.floating]


def apply_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """Mask to -inf what is below each row's k-th largest value; k 0 or above V masks nothing.

    logits [R, V] float, top_k [R] int64. Returns a new tensor.
    """
    vocab = logits.shape[-1]
    if logits.device.type == "cpu":
        rows = logits.numpy()
        cut = np.full(rows.shape[0], -np.inf, dtype=rows.dtype)
        for i, k in enumerate(top_k.tolist()):
            if 0 < k < vocab:
                cut[i] = np.partition(rows[i], vocab - k)[vocab - k]
        threshold = torch.from_numpy(cut)
    else:
        ordered = logits.sort(dim=-1, descending=True).values
        rank = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab) - 1
        threshold = ordered.gather(1, rank.unsqueeze(1)).squeeze(1)
    return _mask_below(logits, threshold)


def apply_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Mask to -inf each token for which more likely tokens already hold mass p; p 1 masks nothing.

    logits [R, V] float, top_p [R] float32 in (0, 1]. The most likely token always stays.
    Returns a new tensor.
    """
    if logits.device.type == "cpu":
        rows = logits.numpy()
        cut = np.full(rows.shape[0], -np.inf, dtype=rows.dtype)
        for i, p in enumerate(top_p.tolist()):
            if p < 1.0:
                cut[i] = _top_p_threshold(rows[i], p)
        return _mask_below(logits, torch.from_numpy(cut))
    ordered = logits.sort(dim=-1, descending=True).values
    mass = ordered.to(torch.float64).softmax(dim=-1)
    above = mass.cumsum(dim=-1) - mass
    kept = (above < top_p.unsqueeze(-1)).sum(dim=-1).clamp(min=1)
    threshold = ordered.gather(1, (kept - 1).unsqueeze(1)).squeeze(1)
    return _mask_below(logits, torch.where(top_p < 1.0, threshold, -torch.inf))


def _top_p_threshold(row: FloatRow, p: float) -> float:
    top = row.max()
    mass = np.exp(row - top)
    total = float(mass.sum(dtype=np.float64))
    # Tokens below this share, all together, hold less than 1 - p: each has mass p above it.
    # Half of it leaves room for rounding.
    candidates = row[mass >= 0.5 * (1.0 - p) / row.size * total]
    candidates[::-1].sort()
    share = np.exp((candidates - top).astype(np.float64)) / total
    above = np.cumsum(share) - share
    kept = max(int(np.count_nonzero(above < p)), 1)
    return float(candidates[kept - 1])


def _mask_below(logits: Tensor, threshold: Tensor) -> Tensor:
    return logits.masked_fill(logits < threshold.to(logits.dtype).unsqueeze(-1), -torch.inf)
