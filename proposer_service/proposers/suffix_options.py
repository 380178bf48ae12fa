"""The options of suffix decoding, and how long a draft they allow behind a tail of each length."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """vLLM's four `suffix_decoding_*` keys.

    `max_tree_depth` bounds tail and draft together, in tokens; `max_cached_requests` is how many
    requests' outputs the global trees hold in all (0: no global trees); a draft has at most
    `max_spec_factor` tokens for each token of the tail that it continues, and ends before its
    probability falls under `min_token_prob`.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1

    def __post_init__(self) -> None:
        for name, valid, allowed in (
            ("max_tree_depth", self.max_tree_depth >= 1, "at least 1"),
            ("max_cached_requests", self.max_cached_requests >= 0, "at least 0"),
            ("max_spec_factor", 0 <= self.max_spec_factor < float("inf"), "a number >= 0"),
            ("min_token_prob", 0 <= self.min_token_prob <= 1, "in [0, 1]"),
        ):
            if not valid:
                raise ValueError(f"suffix_decoding_{name}={getattr(self, name)}: must be {allowed}")


class DraftLimits:
    """How many tokens a tail of each length may draft when `max_draft_tokens` are wanted.

    `by_length[n]` is the limit of a tail of n tokens, `least_match` the shortest that may draft at
    all (None: none may), `peak` one that may draft most: up to it limits never fall, behind it they
    never rise.
    """

    __slots__ = (
        "_order",
        "_orders",
        "_spans",
        "by_length",
        "least_match",
        "min_probability",
        "peak",
    )

    def __init__(self, options: SuffixOptions, max_draft_tokens: int) -> None:
        depth = options.max_tree_depth
        # The rounding error of length * factor must not cost a token.
        self.by_length = [0] + [
            int(min(max_draft_tokens, length * options.max_spec_factor + 1e-6, depth - length))
            for length in range(1, depth)
        ]
        self.min_probability = options.min_token_prob
        self.peak = self.by_length.index(max(self.by_length))
        drafting = [length for length in range(1, depth) if self.by_length[length] > 0]
        self.least_match = drafting[0] if drafting else None
        self._order = sorted(range(1, depth), key=lambda n: (-self.by_length[n], -n))
        # Made as they are asked for: all of them would take the square of the depth.
        self._orders: dict[int, list[int]] = {}
        self._spans = []
        for least in range(1, max(self.by_length) + 1):
            lengths = [n for n in range(1, depth) if self.by_length[n] >= least]
            self._spans.append((lengths[0], lengths[-1]))

    def order(self, longest: int) -> list[int]:
        """The lengths up to `longest` by falling limit, of equals the longer first."""
        order = self._orders.get(longest)
        if order is None:
            order = self._orders[longest] = [n for n in self._order if n <= longest]
        return order

    def lengths_above(self, score: float, longest: int) -> tuple[int, int]:
        """First and last of the lengths up to `longest` whose limit is above `score`.

        The last is below the first where there are none.
        """
        if score >= len(self._spans):
            return 1, 0
        first, last = self._spans[int(score)]
        return first, min(last, longest)
