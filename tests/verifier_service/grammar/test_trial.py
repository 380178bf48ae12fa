"""The process that tries structures: killed where one does not end, started again for the next."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from tests.verifier_service.grammar.toy_grammar import VOCABULARY
from verifier_service.grammar.structure import HopelessStructureError, Kind, Structure
from verifier_service.grammar.trial import TrialLimits, TrialProcess


def exploding(size: int = 3000) -> Structure:
    """A schema of some kilobytes whose grammar takes minutes."""
    properties = {f"property{i}": {"type": "string"} for i in range(size)}
    return Structure(Kind.JSON_SCHEMA, json.dumps({"type": "object", "properties": properties}))


GOOD = Structure(Kind.REGEX, "a+")


def test_a_process_outlives_what_is_merely_wrong_and_is_replaced_after_what_does_not_end() -> None:
    trial = TrialProcess(lambda: VOCABULARY, TrialLimits(seconds=1.0, compiled_bytes=50_000))
    trial.check(GOOD)
    first = trial.pid
    assert first is not None
    for structure, reason in (
        (Structure(Kind.REGEX, "(a"), "parenthesis is not closed"),
        (Structure(Kind.GRAMMAR, 'root ::= "a" root'), "nothing that ever ends"),
        (Structure(Kind.REGEX, "[abc]{1,3000}"), "at most 50000 are allowed"),
    ):
        with pytest.raises(HopelessStructureError, match=reason):
            trial.check(structure)
    assert trial.pid == first
    with pytest.raises(HopelessStructureError, match="within 1 seconds"):
        trial.check(exploding())
    assert trial.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    trial.check(GOOD)
    assert trial.pid not in (None, first)
    trial.close()
    trial.close()
    assert trial.pid is None


def test_a_process_that_is_gone_is_replaced_and_one_that_runs_is_ended_by_closing() -> None:
    trial = TrialProcess(lambda: VOCABULARY, TrialLimits(seconds=100.0))
    trial.check(GOOD)
    first = trial.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    trial.check(GOOD)
    assert trial.pid != first
    outcome: list[BaseException] = []

    def check() -> None:
        try:
            trial.check(exploding())
        except RuntimeError as error:
            outcome.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    # Whether it is closed before or while it checks, the outcome is the same.
    thread.join(0.2)
    trial.close()
    thread.join(20)
    assert [str(error) for error in outcome] == ["the verifier is shutting down"]
