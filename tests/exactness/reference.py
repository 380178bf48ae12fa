"""The processed distribution of one row by its definition, token by token, in plain numpy.

Written from the meaning of the parameters, not from the engine's code: no vectors over rows, no
incremental counts, one row at a time with the whole text that stands before it. float32, so that
equality can be exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from verifier_service.messages import Sampling

Row = npt.NDArray[np.floating]


def allowed_by(mask: npt.NDArray[np.int32], token: int) -> bool:
    """Whether a bit mask's bit of a token is set."""
    return bool(int(mask[token // 32]) >> token % 32 & 1)


def edited(
    logits: Row,
    sampling: Sampling,
    prompt: Sequence[int],
    output: Sequence[int],
    mask: npt.NDArray[np.int32] | None = None,
) -> Row:
    """Logits before temperature: everything that greedy rows see too."""
    row = logits.copy()
    kind = row.dtype.type
    minus_infinity = kind(-np.inf)
    output = list(output)
    for token in range(len(row)):
        if mask is not None and not allowed_by(mask, token):
            row[token] = minus_infinity
        if sampling.allowed_token_ids and token not in sampling.allowed_token_ids:
            row[token] = minus_infinity
    for word in sampling.bad_words:
        before = list(word[:-1])
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            row[word[-1]] = minus_infinity
    if len(output) < sampling.min_tokens:
        for token in sampling.stop_token_ids:
            row[token] = minus_infinity
    for token, bias in sampling.logit_bias:
        row[token] += kind(np.float32(bias))
    counts = Counter(output)
    seen = {*prompt, *output}
    for token in range(len(row)):
        if token in seen:
            factor = kind(np.float32(sampling.repetition_penalty))
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        row[token] -= kind(np.float32(counts[token]) * np.float32(sampling.frequency_penalty))
        row[token] -= kind(np.float32(sampling.presence_penalty if counts[token] else 0.0))
    return row


def processed(
    logits: Row,
    sampling: Sampling,
    prompt: Sequence[int],
    output: Sequence[int],
    mask: npt.NDArray[np.int32] | None = None,
) -> Row:
    """Logits whose softmax is p; of a greedy request, those whose argmax is chosen."""
    row = edited(logits, sampling, prompt, output, mask)
    if sampling.temperature == 0 or sampling.top_k == 1:
        return row
    row = row / row.dtype.type(np.float32(sampling.temperature))
    kept = set(np.flatnonzero(row > -np.inf).tolist())
    best = max(row[token] for token in kept)
    if sampling.min_p > 0:
        least = best + row.dtype.type(np.log(float(np.float32(sampling.min_p))))
        kept = {token for token in kept if row[token] >= least}
    if sampling.top_k and len(kept) > sampling.top_k:
        kth = sorted((row[token] for token in kept), reverse=True)[sampling.top_k - 1]
        kept = {token for token in kept if row[token] >= kth}
    if sampling.top_p < 1:
        mass = {token: float(np.exp(np.float64(row[token]) - np.float64(best))) for token in kept}
        total = sum(mass.values())
        kept = {
            token
            for token in kept
            if sum(m for other, m in mass.items() if row[other] > row[token]) / total
            < sampling.top_p
        }
    result = np.full_like(row, -np.inf)
    for token in kept:
        result[token] = row[token]
    return result


def probabilities(
    logits: Row,
    sampling: Sampling,
    prompt: Sequence[int],
    output: Sequence[int],
    mask: npt.NDArray[np.int32] | None = None,
) -> npt.NDArray[np.float64]:
    """p of one row in float64; one-hot for a greedy request."""
    row = processed(logits, sampling, prompt, output, mask).astype(np.float64)
    if sampling.temperature == 0 or sampling.top_k == 1:
        certain = np.zeros_like(row)
        certain[row.argmax()] = 1.0
        return certain
    weights = np.exp(row - row.max())
    law: npt.NDArray[np.float64] = weights / weights.sum()
    return law
