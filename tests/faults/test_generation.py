"""Faults while a model generates: every request finishes, with the very tokens of plain decoding.

The torch engine on a tiny random model, proposers in processes of their own, over Unix sockets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.acceptance import Round
from tests.faults.proposer_process import (
    PATIENCE_S,
    VOCABULARY,
    ProposerProcess,
    all_connected,
    attach,
    eventually,
)
from tests.faults.test_proposer_adversaries import Servers
from verifier_service.build import build_core
from verifier_service.core import EngineCore
from verifier_service.messages import NoDrafts, Output, Request, Sampling
from verifier_service.proposer_pool import ProposerPool
from verifier_service.settings import VerifierSettings

TOKENS = 96
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            eos_token_id=None,
        )
    ).save_pretrained(folder)
    return folder


def core_of(model: Path, source: ProposerPool | NoDrafts, k: int) -> EngineCore:
    settings = VerifierSettings(
        str(model),
        "unused",
        "tiny",
        device="cpu",
        dtype="float32",
        num_speculative_tokens=k,
        max_num_seqs=8,
        adaptive=False,
        compile=False,
        threads=1,
    )
    return build_core(settings, source)


class Answers:
    """Requests running at once, and a hook that is called after each output."""

    def __init__(self, core: EngineCore, after: Callable[[int], None] | None = None) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.rounds: list[Round] = []
        self._after = after
        self._seen = 0
        self._left = threading.Semaphore(0)
        self._count = 0
        for i in range(6):
            name = f"r{i}"
            self.tokens[name] = []
            self._count += 1
            sampling = Sampling(temperature=0.0 if i % 2 else 0.8, seed=i, max_tokens=TOKENS)
            prompt = [*PROMPT, i]
            core.submit(Request(name, prompt, sampling), lambda o, name=name: self._take(name, o))

    def _take(self, name: str, output: Output) -> None:
        assert not output.error, output.error
        self.tokens[name] += output.token_ids
        if output.round:
            self.rounds.append(output.round)
        self._seen += 1
        if self._after:
            self._after(self._seen)
        if output.finish_reason:
            self._left.release()

    def wait(self) -> Answers:
        for _ in range(self._count):
            assert self._left.acquire(timeout=PATIENCE_S * 2)
        return self


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, list[int]]:
    core = core_of(model, NoDrafts(), 0)
    answers = Answers(core).wait()
    core.shutdown()
    assert all(len(tokens) == TOKENS for tokens in answers.tokens.values())
    return answers.tokens


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.stop()


@pytest.mark.parametrize("victims", [("ngram",), ("suffix",), ("ngram", "suffix")])
def test_kill_nine_in_mid_generation_changes_no_token(
    model: Path, plain: dict[str, list[int]], socket_dir: Path, victims: tuple[str, ...]
) -> None:
    listen = {name: f"unix:{socket_dir}/{name}.sock" for name in ("ngram", "suffix")}
    processes = {name: ProposerProcess(address, name) for name, address in listen.items()}
    # The model's text rarely repeats two tokens: with look-ahead hardly any draft is waited for.
    pool = attach(list(listen.values()), deadline_s=2.0, lookahead=False)
    core = core_of(model, pool, 4)
    try:
        eventually(lambda: all_connected(pool))

        def kill(seen: int) -> None:
            if seen == 60:
                for name in victims:
                    processes[name].kill()

        answers = Answers(core, kill).wait()
        assert answers.tokens == plain
        assert any(r.drafted for r in answers.rounds[:60]), "nothing was drafted before the kill"

        for name in victims:
            processes[name] = ProposerProcess(listen[name], name)
        eventually(lambda: all_connected(pool))
        again = Answers(core).wait()
        assert again.tokens == plain
        for name in victims:
            drafted = [r for r in again.rounds if r.proposer == name and r.drafted]
            assert drafted or len(victims) == 1, f"{name} drafts no more"
    finally:
        core.shutdown()
        for process in processes.values():
            process.kill()


@pytest.mark.parametrize(
    "kind",
    [
        "random",
        "always_wrong",
        "out_of_range",
        "delayed",
        "silent",
        "duplicated",
        "reordered",
        "stale_epoch",
        "stale_base",
        "wrong_length",
        "flood",
        "garbage",
        "other_vocabulary",
        "false_claim",
    ],
)
def test_no_adversary_changes_a_token(
    model: Path, plain: dict[str, list[int]], socket_dir: Path, servers: Servers, kind: str
) -> None:
    address = f"unix:{socket_dir}/bad.sock"
    servers.start(kind, address)
    pool = attach([address], deadline_s=0.2)
    core = core_of(model, pool, 4)
    try:
        assert Answers(core).wait().tokens == plain
    finally:
        core.shutdown()


def test_an_unreachable_proposer_costs_no_token(
    model: Path, plain: dict[str, list[int]], socket_dir: Path
) -> None:
    core = core_of(model, attach([f"unix:{socket_dir}/nobody.sock"], deadline_s=0.2), 4)
    try:
        answers = Answers(core).wait()
        assert answers.tokens == plain
        assert not any(r.drafted for r in answers.rounds)
    finally:
        core.shutdown()
