"""A draft model from its settings: the folder, its vocabulary, and the engine that runs it.

Knows the verifier's loading and engine, which serve a draft model as they serve a target; does not
know how it drafts. Blocks for seconds to minutes and belongs on a thread of its own.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from outrider.errors import InputError
from outrider.vocabulary import fingerprint
from proposer_service.draft_model.proposer import Budgets, DraftModelProposer
from proposer_service.draft_model_settings import DraftModelSettings
from verifier_service.engines.device_uuid import device_uuid
from verifier_service.engines.loading import ModelLoadError, resolve_device
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.settings import VerifierSettings
from verifier_service.target_facts import read_target_facts

_log = logging.getLogger(__name__)

# What one forward may read. On a card steps of up to 512 ids are captured and take milliseconds; on
# a CPU 128 ids of a small model take a few tenths of a second, in which nobody is answered.
_CUDA_BUDGETS = Budgets(answer=512, piece=512)
_CPU_BUDGETS = Budgets(answer=256, piece=128)
_OPTION = "draft model"


@dataclass(frozen=True, slots=True)
class LoadedDraftModel:
    """A method that drafts, and what verifiers are told of it; sizes in ids and tokens."""

    proposer: DraftModelProposer
    vocabulary_fingerprint: str
    vocabulary_size: int
    context_limit: int
    description: str


def load_draft_model(settings: DraftModelSettings, max_sequences: int) -> LoadedDraftModel:
    """Load the model for at most `max_sequences` at once.

    Raises InputError with the reason where it cannot be used, OperationError where a model must be
    fetched first and cannot.
    """
    begun = time.monotonic()
    folder = find_folder(settings)
    vocabulary = _vocabulary(folder)
    # Asked of the verifier's own code, so that both sides count a padded vocabulary alike.
    facts = read_target_facts(folder, settings.max_model_len)
    _log.info("draft model loading model=%s folder=%s", settings.model, folder)
    try:
        engine = TorchEngine(_engine_settings(settings, folder, max_sequences))
    except ModelLoadError as error:
        raise InputError(f"{_OPTION}: {error}") from error
    on_cpu = engine.model.device == "cpu"
    (step_s,) = engine.profile((1,), 0, repeats=3).values()
    description = (
        f"model={settings.model} device={engine.model.device} dtype={engine.model.dtype} "
        f"max_model_len={engine.model.max_model_len} "
        f"cached_tokens={engine.cache.num_blocks * engine.cache.block_size} "
        f"step_ms={step_s * 1e3:.1f} seconds={time.monotonic() - begun:.2f}"
    )
    return LoadedDraftModel(
        DraftModelProposer(
            engine,
            sample_method=settings.draft_sample_method,
            budgets=_CPU_BUDGETS if on_cpu else _CUDA_BUDGETS,
            device_uuid=device_uuid(resolve_device(settings.device)),
        ),
        vocabulary,
        facts.vocab_size,
        engine.model.max_model_len,
        description,
    )


def find_folder(settings: DraftModelSettings) -> Path:
    """The model's folder; one that has a known name or is a hub's is fetched where it is missing.

    Raises InputError and OperationError as `resolve_model` does.
    """
    from outrider.checkpoints import ModelStore
    from outrider.config import cache_directory
    from outrider.model_folders import resolve_model

    store = ModelStore(cache_directory())

    def pull(name: str) -> Path:
        _log.info("draft model pulling model=%s", name)
        return store.pull(name, lambda stage, done, total: None)

    return resolve_model(settings.model, store, pull, _OPTION, settings.revision).folder


def _engine_settings(
    settings: DraftModelSettings, folder: Path, max_sequences: int
) -> VerifierSettings:
    """One row a sequence is all that a draft's steps have; prompts are captured as the target's."""
    return VerifierSettings(
        model=str(folder),
        listen="",
        served_model_name=settings.model,
        num_speculative_tokens=0,
        num_prediction_tokens=0,
        device=settings.device,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        max_num_seqs=max_sequences,
        kv_cache_bytes=settings.kv_cache_memory_bytes,
        enforce_eager=settings.enforce_eager,
        quantization=settings.quantization or "none",
    )


def _vocabulary(folder: Path) -> str:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, verbose=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(f"{_OPTION}: no tokenizer can be read from {folder}: {reason}") from error
    return fingerprint(tokenizer.get_vocab())
