"""Real proposer processes for fault tests, and a target to draft for that needs no model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from verifier_service.messages import DraftBlock, Sampling, SequenceView
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState

PATIENCE_S = 30.0
VOCABULARY = 1000

_SERVE = """
import json, sys
from proposer_service.server import run
from proposer_service.settings import ProposerSettings
run(ProposerSettings(**json.loads(sys.argv[1])))
"""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "did not happen"
        time.sleep(0.01)


class ProposerProcess:
    """One `proposer_service` process."""

    def __init__(self, listen: str, method: str = "ngram", **settings: object) -> None:
        options = {"listen": listen, "method": method, "log_level": "warning", **settings}
        if method == "ngram":
            options = {"prompt_lookup_min": 2, "prompt_lookup_max": 4, **options}
        self._process = subprocess.Popen([sys.executable, "-c", _SERVE, json.dumps(options)])

    def kill(self) -> None:
        """SIGKILL: no goodbye, the socket file stays."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)


def attach(
    addresses: Sequence[str], *, deadline_s: float = PATIENCE_S, lookahead: bool = True
) -> ProposerPool:
    hello = HelloParameters(
        verifier_instance_id="fault-test",
        vocabulary_fingerprint="00ff",
        vocabulary_size=VOCABULARY,
        eos_token_ids=(0,),
        max_sequences=64,
        num_speculative_tokens=4,
        context_limit=100_000,
        on_cpu=not lookahead,
    )
    return ProposerPool(addresses, hello, deadline_s)


def all_connected(pool: ProposerPool) -> bool:
    return all(state.state is LinkState.CONNECTED for state in pool.states())


class Text:
    """A sequence whose target repeats itself, so that prompt lookup drafts well.

    `truth` is the whole answer; a round commits the drafts that agree with it, and one id more.
    """

    def __init__(self, sequence_id: int, period: int = 11) -> None:
        self.sequence_id = sequence_id
        self._period = period
        self.ids = [self._truth(i) for i in range(3 * period)]
        self._prompt_length = len(self.ids)
        self._last: tuple[str, int, int] = ("", 0, 0)
        self.drafted = 0
        self.accepted = 0

    def _truth(self, position: int) -> int:
        return 100 * (self.sequence_id % 9) + (position * position) % self._period

    def view(self) -> SequenceView:
        proposer, drafted, accepted = self._last
        return SequenceView(
            sequence_id=self.sequence_id,
            ids=self.ids,
            prompt_length=self._prompt_length,
            max_draft_tokens=4,
            sampling=Sampling(),
            proposer=proposer,
            drafted=drafted,
            accepted=accepted,
        )

    def verify(self, block: DraftBlock | None) -> None:
        """One round: the block's longest true prefix, then the target's own id."""
        drafts = block.token_ids if block is not None else ()
        accepted = 0
        for token_id in drafts:
            if token_id != self._truth(len(self.ids) + accepted):
                break
            accepted += 1
        self.ids.extend(self._truth(len(self.ids)) for _ in range(accepted + 1))
        self._last = (block.proposer if block is not None else "", len(drafts), accepted)
        self.drafted += len(drafts)
        self.accepted += accepted


def play(pool: ProposerPool, texts: Sequence[Text], rounds: int) -> list[dict[int, set[str]]]:
    """Rounds of all texts; whose blocks came for which sequence in each."""
    history = []
    for _ in range(rounds):
        pool.send([text.view() for text in texts], [])
        drafts = pool.collect()
        for text in texts:
            blocks = drafts.get(text.sequence_id, [])
            assert all(block.base_length == len(text.ids) for block in blocks)
            text.verify(max(blocks, key=lambda block: len(block.token_ids), default=None))
        history.append({i: {b.proposer for b in blocks} for i, blocks in drafts.items()})
    return history
