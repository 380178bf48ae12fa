"""`prediction` names a request's own drafts, whatever proposers call themselves."""

from __future__ import annotations

from outrider.scripted_proposer import ScriptedProposer, capabilities
from tests.verifier_service.proposer_world import World


def test_a_proposer_that_calls_itself_so_gets_another_name() -> None:
    world = World(
        {
            f"unix:{name}": ScriptedProposer(welcome=capabilities("prediction"))
            for name in ("a", "b")
        }
    )
    assert [state.name for state in world.pool.states()] == ["prediction-2", "prediction-3"]
