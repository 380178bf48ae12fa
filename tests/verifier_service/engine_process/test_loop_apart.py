"""The tests of the core's thread, once more, of a core behind the channel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.toy_engine import ToyEngine, ToySource
from tests.verifier_service import test_loop
from tests.verifier_service.engine_process.joined import join
from tests.verifier_service.test_loop import (
    test_a_failing_engine_fails_its_requests_and_takes_no_more,
    test_a_request_id_in_use_is_an_error_to_its_sender_only,
    test_an_aborted_request_gets_no_further_output,
    test_answers_arrive_and_equal_plain_ones,
    test_shutdown_fails_what_is_left,
    test_speculation_state_names_its_reason,
    test_the_queue_is_bounded_before_the_thread_sees_it,
)
from verifier_service.engine_process.remote_core import RemoteCore

__all__ = [
    "test_a_failing_engine_fails_its_requests_and_takes_no_more",
    "test_a_request_id_in_use_is_an_error_to_its_sender_only",
    "test_an_aborted_request_gets_no_further_output",
    "test_answers_arrive_and_equal_plain_ones",
    "test_shutdown_fails_what_is_left",
    "test_speculation_state_names_its_reason",
    "test_the_queue_is_bounded_before_the_thread_sees_it",
]


@pytest.fixture(autouse=True)
def cores_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    make = test_loop.make

    def make_apart(engine: ToyEngine, **options: Any) -> tuple[RemoteCore, ToySource]:
        core, source = make(engine, **options)
        remote, _, _ = join(core, max_waiting=options.get("max_waiting", 10))
        return remote, source

    monkeypatch.setattr(test_loop, "make", make_apart)
