"""The periodic `SpecDecoding metrics:` line, in vLLM's format.

Knows the verifier's sums and the clock; knows no requests. Logged here and not by the gateway,
since the verifier alone sees every round: other gateways', gRPC clients' and cancelled ones' too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from outrider.acceptance import Acceptance

logger = logging.getLogger(__name__)


class SpecDecodingLog:
    """Tells what was drafted and accepted since it was told last; nothing where nothing was.

    `now` is in seconds.
    """

    def __init__(self, acceptance: Acceptance, now: float) -> None:
        self._acceptance = acceptance
        self._told = acceptance.since(Acceptance(acceptance.num_spec_tokens))
        self._told_at = now

    def line(self, now: float) -> str | None:
        """The line for the interval that ends now, and begin the next one."""
        sums = self._acceptance.since(self._told)
        seconds = max(now - self._told_at, 1e-9)
        self._told = self._acceptance.since(Acceptance(self._acceptance.num_spec_tokens))
        self._told_at = now
        if sums.num_spec_steps == 0:
            return None
        accepted, drafted = sums.num_accepted_draft_tokens, sums.num_draft_tokens
        rates = ", ".join(f"{rate:.3f}" for rate in sums.per_position_rates())
        return (
            f"SpecDecoding metrics: Mean acceptance length: {sums.mean_acceptance_length:.2f}, "
            f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
            f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
            f"Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {100 * sums.draft_acceptance_rate:.1f}%"
        )


async def log_spec_decoding(
    acceptance: Acceptance, interval_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Log the line every `interval_s` seconds until cancelled."""
    log = SpecDecodingLog(acceptance, clock())
    while True:
        await asyncio.sleep(interval_s)
        line = log.line(clock())
        if line is not None:
            logger.info("%s", line)
