"""Prompts too long to be captured, read once before anybody asks.

A device's library loads a kernel when it is first launched, and chooses by the number of tokens
which one that is: on an H200 4 ms for each that is new, several in a step, while the device stands
still. Knows chunks; does not know the model.
"""

from __future__ import annotations

from collections.abc import Callable

from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.start_progress import stage
from verifier_service.messages import Sampling

# Lengths that lie so far apart mostly have kernels of their own; behind the last one few are new.
_APART, _LAST = 256, 8192


def lengths(captured: int, most: int) -> range:
    """Tokens of the steps to run, where up to `captured` are and up to `most` may be asked for."""
    return range(captured + _APART, min(most, _LAST) + 1, _APART)


def read_once(
    run: Callable[[list[Chunk]], object], tokens: range, cache: CacheShape, max_model_len: int
) -> None:
    """Run a step of each number of `tokens`. Nothing of what it writes to the cache is valid."""
    if not tokens:
        return
    with stage(f"reading prompts of {tokens[0]} to {tokens[-1]} tokens once"):
        for count in tokens:
            run(_prompts(count, cache, max_model_len))


def _prompts(tokens: int, cache: CacheShape, max_model_len: int) -> list[Chunk]:
    """So many tokens in as few sequences as can be, all in the same blocks."""
    # One token of room, for the one that is chosen.
    longest = min(max_model_len - 1, cache.num_blocks * cache.block_size)
    shares = [longest] * (tokens // longest)
    if tokens % longest:
        shares.append(tokens % longest)
    return [
        Chunk(
            [0] * share,
            0,
            list(range(-(-share // cache.block_size))),
            0,
            True,
            Sampling(temperature=0.0),
            sequence_ids=[0] * share,
            prompt_length=share,
        )
        for share in shares
    ]
