"""Min-p, top-k and top-p as a threshold on each row's logits.

Defined by values, not by ranks, so that nothing depends on a sort's order: min-p keeps every token
that is at least min_p times as likely as the most likely one; top-k keeps every token whose logit
is at least the k-th largest; top-p then keeps every token for which strictly more likely tokens
hold less than mass p of what is left. Tied tokens stay or go together.

On the CPU each row is cut by itself with numpy, looking only at tokens that can matter. On
other devices one sort of all rows keeps shapes fixed and the host out of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatRow = npt.NDArray[np.floating]

# Width of the groups whose maxima bound the k-th largest value from below.
_GROUP = 64


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Mask to -inf what min-p, top-k and then top-p leave out; a new tensor.

    logits [R, V] float; top_k [R] int64, 0 for no limit; top_p [R] float32 in (0, 1], 1 for no
    limit; min_p [R] float32 in [0, 1], 0 for no limit. The most likely token always stays.
    """
    if logits.device.type == "cpu":
        return _filter_one_by_one(logits, top_k, top_p, min_p)
    threshold = thresholds_by_sort(logits, top_k, top_p, min_p)
    return logits.masked_fill(logits < threshold.unsqueeze(-1), -torch.inf)


def thresholds_by_sort(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The lowest logit that stays in each row, [R], by one sort; -inf where all stay."""
    vocab = logits.shape[-1]
    ordered = logits.sort(dim=-1, descending=True).values
    rank = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab) - 1
    floor = ordered[:, :1] + min_p.to(torch.float64).log().to(ordered.dtype).unsqueeze(-1)
    least = torch.maximum(ordered.gather(1, rank.unsqueeze(1)), floor)
    mass = ordered.masked_fill(ordered < least, -torch.inf).to(torch.float64).softmax(dim=-1)
    above = mass.cumsum(dim=-1) - mass
    kept = (above < top_p.unsqueeze(-1)).sum(dim=-1, keepdim=True).clamp(min=1)
    pth = ordered.gather(1, kept - 1)
    limited = top_p.unsqueeze(-1) < 1.0
    threshold = torch.where(limited, torch.maximum(least, pth), least).squeeze(1)
    unlimited = ((top_k <= 0) | (top_k >= vocab)) & (top_p >= 1.0) & (min_p <= 0.0)
    return threshold.masked_fill(unlimited, -torch.inf)


def _filter_one_by_one(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    rows = logits.numpy()
    filtered = np.full_like(rows, -np.inf)
    limits = zip(top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
    for i, (k, p, least) in enumerate(limits):
        row = rows[i]
        left = _at_least_kth(row, k) if 0 < k < row.size else row
        if least > 0.0:
            left = _where(left, left >= left.max() + row.dtype.type(np.log(least)))
        if p < 1.0:
            kept = np.flatnonzero(row >= _top_p_threshold(left, p))
        elif left is not row:
            kept = np.flatnonzero(row >= left.min())
        else:
            filtered[i] = row
            continue
        filtered[i, kept] = row[kept]
    return torch.from_numpy(filtered)


def _at_least_kth(row: FloatRow, k: int) -> FloatRow:
    """All values that are at least the k-th largest."""
    groups = row.size // _GROUP
    if k <= groups:
        # k groups have a maximum that is at least their k-th largest maximum, so k values are.
        maxima = row[: groups * _GROUP].reshape(groups, _GROUP).max(axis=1)
        row = _where(row, row >= np.partition(maxima, groups - k)[groups - k])
    return _where(row, row >= np.partition(row, row.size - k)[row.size - k])


def _top_p_threshold(row: FloatRow, p: float) -> float:
    """The lowest value with less than mass p above it."""
    top = row.max()
    mass = np.exp(row - top)
    total = float(mass.sum())
    # Few tokens hold most of the mass as a rule; the boundary is among them if they hold p.
    # Tokens below the last floor hold, all together, less than 1 - p: each has mass p above.
    for floor in (1e-3, 1e-5, 0.5 * (1.0 - p) / row.size * total):
        candidates = np.sort(_where(row, mass >= floor))[::-1]
        share = np.exp(candidates.astype(np.float64) - float(top)) / total
        held = np.cumsum(share)
        if held[-1] > p + 1e-5:
            break
    kept = max(int(np.count_nonzero(held - share < p)), 1)
    return float(candidates[kept - 1])


def _where(row: FloatRow, mask: npt.NDArray[np.bool_]) -> FloatRow:
    # Several times faster than row[mask] for a sparse mask.
    found: FloatRow = row[np.flatnonzero(mask)]
    return found
