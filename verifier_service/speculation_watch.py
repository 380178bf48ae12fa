"""Shows the controller's decisions: a log line when speculation goes on or off, and snapshots.

Knows when to look and what to write; decides nothing. Used by the engine's thread, once a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from verifier_service.controller import Controller
from verifier_service.explanation import Explanation, kind_of

# Steps between two looks at all the numbers, where the state does not change.
_LOOK_EVERY = 64
# Seconds between two lines at debug level.
_TELL_EVERY_S = 10.0

NOT_CONFIGURED = Explanation(state="off: not configured")


class SpeculationWatch:
    """The last explanation of one controller; None for a verifier that never speculates.

    `observe` logs one line at info when speculation goes on or off, or when the reason becomes
    another one (not in its figures, which differ at every step; once in ten seconds at most), and
    at debug one every ten seconds while steps are made.
    """

    def __init__(
        self,
        controller: Controller | None,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._log = log
        self._clock = clock
        self._steps = 0
        self._told_at = clock()
        self._told = ""
        self._explanation = NOT_CONFIGURED if controller is None else controller.explain()

    @property
    def explanation(self) -> Explanation:
        """The numbers as of at most 64 steps ago."""
        return self._explanation

    def state(self) -> str:
        """`on`, or `off: ` and why, as of now."""
        controller = self._controller
        return NOT_CONFIGURED.state if controller is None else controller.state()

    def observe(self, state: str) -> None:
        """Take in the state behind a step."""
        self._steps += 1
        kind = kind_of(state)
        now = self._clock()
        due = now - self._told_at >= _TELL_EVERY_S
        if (kind == "on") != (self._told == "on") or not self._told or (due and kind != self._told):
            self._tell(logging.INFO, state, now)
            self._told = kind
        elif due and self._log.isEnabledFor(logging.DEBUG):
            self._tell(logging.DEBUG, state, now)
        elif self._controller is not None and self._steps % _LOOK_EVERY == 0:
            self._explanation = self._controller.explain()

    def _tell(self, level: int, state: str, now: float) -> None:
        self._told_at = now
        if self._controller is not None:
            self._explanation = self._controller.explain()
        if self._explanation.plain_step_ms > 0.0:
            self._log.log(level, "speculation %s (%s)", state, self._explanation.figures())
        else:
            self._log.log(level, "speculation %s", state)
