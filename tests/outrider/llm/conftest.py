"""`LLM`s over a toy target that loads in milliseconds, over scripted cores, over a real model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiny_model import make_tiny_model
from outrider import LLM
from tests.fakes import FakeCore
from tests.interfaces.stack import KNOWN, MAX_MODEL_LEN, Writer, WriterEngine
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.controller import Controller
from verifier_service.core import EngineCore
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.messages import DraftSource
from verifier_service.scheduler import Scheduler
from verifier_service.settings import VerifierSettings

# Both are asked, and every draft is verified, whatever it costs.
SPECULATION = [
    {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
        "enable_adaptive_verification": False,
    },
    {"method": "suffix", "num_speculative_tokens": 3, "enable_adaptive_verification": False},
]


def toy_core(settings: VerifierSettings, source: DraftSource) -> EngineCore:
    """`build_core` for the toy target, with every part but the engine real."""
    engine = WriterEngine(
        Writer.of(KNOWN, len(byte_level_tokenizer())),
        num_blocks=512,
        block_size=8,
        rule=settings.rejection_rule,
    )
    controller = Controller(
        settings.draft_ceiling,
        CostTable.from_profile({1: 1e-3, 2: 1.1e-3, 5: 1.2e-3}, 64),
        adaptive=settings.adaptive,
    )
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_waiting=settings.max_waiting_requests,
    )
    return Core(
        engine,
        scheduler,
        controller,
        source,
        max_waiting=settings.max_waiting_requests,
        speculative=settings.num_speculative_tokens > 0,
    )


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose weights nobody reads."""
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("toy")
    byte_level_tokenizer().save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(byte_level_tokenizer()),
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=1,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    (folder / "model.safetensors").touch()
    return folder


MakeLLM = Callable[..., LLM]


@pytest.fixture
def toy_llm(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLLM]:
    """Makes `LLM`s over the toy target, shut down at the end; keywords are `LLM`'s."""
    monkeypatch.setattr("verifier_service.build.build_core", toy_core)
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(LLM(str(toy_folder), **options))


@pytest.fixture
def scripted_llm(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLLM]:
    """Makes `LLM`s over a given `FakeCore`, shut down at the end."""
    with ExitStack() as stack:

        def make(core: FakeCore, **options: Any) -> LLM:
            monkeypatch.setattr("verifier_service.build.build_core", lambda *_: core)
            return stack.enter_context(LLM(str(toy_folder), **options))

        yield make


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real Llama of a few kilobytes."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
