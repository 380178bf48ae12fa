"""When nobody reads what proposers say: while a step is held for drafts that are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.verifier_service.loop_world import (
    BlindController,
    SeeingSource,
    SpyController,
    nothing,
    run,
)
from tests.verifier_service.test_loop import request
from verifier_service.messages import SequenceView


class HushedSource(SeeingSource):
    """Notes when nothing is read, and what is said meanwhile."""

    quiet = False
    hushed = 0
    heard = True

    def hush(self) -> None:
        self.quiet = True
        self.hushed += 1

    def listen(self) -> None:
        self.quiet = False

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.heard = self.heard and not self.quiet
        super().send(views, closed)


def test_readers_are_hushed_from_the_hold_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (HushedSource, SpyController)
    monkeypatch.setattr(HushedSource, "drafts", (4, 5, 7))
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")], foresees=True, kinds=kinds)
    assert seen.source.hushed == 3
    assert not seen.source.quiet
    assert seen.source.heard, "messages leave behind the launch"


def test_nobody_is_hushed_where_the_device_has_its_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (SpyController, BlindController):
        # Looked at and begun, or begun before anybody looked.
        seen = run(monkeypatch, nothing, lambda _: True, [request("a")], kinds=(HushedSource, kind))
        assert [begins for _, begins in seen.engine.asked].count(True) >= 11
        assert seen.source.hushed == 0
    monkeypatch.setattr(HushedSource, "drafts", (4,))
    seen = run(
        monkeypatch, nothing, lambda _: True, [request("a")], kinds=(HushedSource, BlindController)
    )
    # What is seen too late holds the next step, not this one.
    assert seen.engine.sure.count(False) == 1
    assert seen.source.hushed == 0
