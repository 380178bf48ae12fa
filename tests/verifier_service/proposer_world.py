"""A pool on a fake network with scripted proposers: what the proposer tests share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from outrider.fake_transport import FakeNetwork
from outrider.scripted_proposer import ScriptedProposer
from verifier_service.messages import DraftBlock, Sampling, SequenceView
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState, ProposerState

DEADLINE_S = 0.010
VOCABULARY = 1000


def hello(**changes: object) -> HelloParameters:
    values: dict[str, object] = {
        "verifier_instance_id": "verifier",
        "vocabulary_fingerprint": "00ff",
        "vocabulary_size": VOCABULARY,
        "eos_token_ids": (0,),
        "max_sequences": 8,
        "num_speculative_tokens": 4,
        "context_limit": 2048,
    }
    return HelloParameters(**{**values, **changes})  # type: ignore[arg-type]


def told(world: World, views: list[SequenceView]) -> dict[int, list[DraftBlock]] | None:
    """What need not be waited for; None where somebody's answer is not known."""
    foreseen = world.pool.foreseen(views)
    return None if foreseen.unknown else foreseen.blocks


def view(sequence_id: int, ids: list[int], k: int = 4, **fields: object) -> SequenceView:
    values: dict[str, object] = {"prompt_length": 2, "sampling": Sampling(), **fields}
    return SequenceView(
        sequence_id=sequence_id,
        ids=ids,
        max_draft_tokens=k,
        **values,  # type: ignore[arg-type]
    )


@dataclass
class World:
    """Proposers by address, served from the start unless `serve` is False."""

    proposers: dict[str, ScriptedProposer]
    parameters: HelloParameters = field(default_factory=hello)
    serve: bool = True
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        self.network = FakeNetwork()
        if self.serve:
            for address, proposer in self.proposers.items():
                self.network.serve(address, proposer)
        self.pool = ProposerPool(
            list(self.proposers),
            self.parameters,
            self.deadline_s,
            transport=self.network,
            clock=self.network,
            rng=random.Random(0),
            maintain=False,
        )
        self.settle()

    def settle(self, seconds: float = 0.0) -> None:
        """Let virtual time pass as the pool's own thread would see it."""
        until = self.network.now() + seconds
        while True:
            self.pool.tick()
            self.network.advance(0.0)
            left = until - self.network.now()
            if left <= 1e-9:
                return
            self.network.advance(min(0.05, left))

    def round(
        self, *views: SequenceView, closed: tuple[tuple[int, bool], ...] = ()
    ) -> dict[int, list[DraftBlock]]:
        self.pool.send(views, closed)
        return self.pool.collect()

    def timed_round(self, *views: SequenceView) -> tuple[dict[int, list[DraftBlock]], float]:
        start = self.network.now()
        drafts = self.round(*views)
        return drafts, self.network.now() - start

    def state(self, index: int = 0) -> ProposerState:
        return self.pool.states()[index]

    def link(self, index: int = 0) -> LinkState:
        return self.state(index).state


ADDRESS = "unix:a"


def world(proposer: ScriptedProposer | None = None, **fields: object) -> World:
    return World({ADDRESS: proposer or ScriptedProposer()}, **fields)  # type: ignore[arg-type]
