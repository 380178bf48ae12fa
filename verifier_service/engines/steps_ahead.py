"""What a captured engine begins behind the step that runs: a plain one, or one with prompts in it.

Knows chunks, verdicts and which captured steps there are; does not know the model, nor who decides
what follows. Rounds go on with the tokens of the step before, which the device has before the host
does; prompts that join are known as soon as they have come. So a step is begun while the one before
it runs, and the device stands still neither for the host nor for who comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verifier_service.engines.base import (
    CacheShape,
    Chunk,
    GoesOn,
    Joining,
    Verdict,
    is_verification,
)
from verifier_service.engines.graphs import GraphRunner, Launched
from verifier_service.engines.prefill_graphs import PrefillGraphs
from verifier_service.engines.run_ahead import (
    Begun,
    Joined,
    expect_blindly,
    expected_at,
    joined,
    starts_behind,
)


@dataclass(slots=True)
class Wanted:
    """What `Engine.run` was told of the step behind; whether that was begun `blindly`."""

    goes_on: GoesOn | None
    sure: bool
    joining: Joining
    blindly: bool = False


class StepsAhead:
    """Begins steps of one engine's captures. At most one is begun and not asked for yet."""

    def __init__(
        self,
        decoding: GraphRunner,
        prefill: PrefillGraphs | None,
        cache: CacheShape,
        max_model_len: int,
    ) -> None:
        self._decoding = decoding
        self._prefill = prefill
        self._cache = cache
        self._max_model_len = max_model_len

    def begin_blindly(self, chunks: Sequence[Chunk], launched: Launched, wanted: Wanted) -> None:
        """Begin the step behind `launched`, whose verdicts are not known, if the host is sure."""
        if not wanted.sure or launched.result is None:
            return
        going_on = expect_blindly(chunks, self._cache, self._max_model_len)
        new = None if going_on is None else joined(wanted.joining())
        if going_on is None or new is None:
            return
        if not new and self._decoding.begin_blindly(going_on, launched):
            wanted.blindly = True
            return
        begun: Begun = [*going_on, *new]
        runner = self._runner(begun, new)
        wanted.blindly = runner is not None and runner.begin_behind(begun, launched)

    def settle(
        self,
        chunks: Sequence[Chunk],
        told: Sequence[Verdict | None],
        wanted: Wanted,
        launched: Launched | None = None,
    ) -> None:
        """Begin the step behind one whose verdicts are `told`, if it is known and wanted.

        What was begun blindly is told what it stands behind, and forgotten if it is not wanted.
        `launched` is the step where it was one of decoding alone.
        """
        goes_on = wanted.goes_on
        verdicts = [verdict for verdict in told if verdict is not None]
        if wanted.blindly:
            self._settle_begun(verdicts, goes_on)
            return
        if goes_on is None or len(verdicts) < len(chunks):
            return
        # Where the step is held for drafts, nothing but this is done before it is planned.
        starts = starts_behind(chunks, verdicts, self._cache, self._max_model_len)
        if starts is None or not goes_on(verdicts):
            return
        new = joined(wanted.joining())
        if new is None:
            return
        begun: Begun = [*expected_at(starts, chunks, verdicts, self._cache), *new]
        runner = self._runner(begun, new)
        if runner is not None:
            runner.begin_next(begun, None if new else launched)

    def forget_prompts(self) -> None:
        """The step that comes has none: what was begun with some is not wanted."""
        if self._prefill is not None:
            self._prefill.runner.forget_next()

    def _settle_begun(self, verdicts: list[Verdict], goes_on: GoesOn | None) -> None:
        wanted = goes_on is not None and goes_on(verdicts)
        for runner in self._runners():
            if wanted:
                runner.tell(verdicts)
            else:
                runner.forget_next()

    def _runner(self, begun: Begun, new: Sequence[Joined]) -> GraphRunner | None:
        """The captures that such a step is one of."""
        if all(is_verification(one.chunk) for one in new):
            return self._decoding
        prefill = self._prefill
        if prefill is None or not prefill.serves([one.as_chunk() for one in begun]):
            return None
        return prefill.runner

    def _runners(self) -> list[GraphRunner]:
        prefill = self._prefill
        return [self._decoding, *([] if prefill is None else [prefill.runner])]
