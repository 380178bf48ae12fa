"""From checked options to an engine in this process: models found, proposers and target loaded.

Knows the order in which that is done; what an `LLM` makes of the engine is llm.py's.
"""

from __future__ import annotations

import threading
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.checkpoints import ModelStore
from outrider.commands.models import open_store, pull_with_progress
from outrider.config import SpeculativeConfig
from outrider.draft_model_folders import find_draft_models
from outrider.errors import InputError
from outrider.llm_options import LLMOptions, draft_placement
from outrider.model_folders import Model, resolve_model

if TYPE_CHECKING:
    from outrider.llm_engine import LocalEngine
    from outrider.llm_proposers import LocalProposers
    from verifier_service.settings import VerifierSettings


def find_models(
    model: str, options: LLMOptions, configs: tuple[SpeculativeConfig, ...]
) -> tuple[Model, tuple[SpeculativeConfig, ...]]:
    """The target and `configs` with their draft models found. Raises InputError."""
    store = open_store(options.cache_dir)
    pull = partial(_pull, store)
    target = resolve_model(str(model), store, pull, "model")
    return target, find_draft_models(
        configs,
        target,
        store,
        pull,
        max_model_len=options.max_model_len,
        enforce_eager=options.enforce_eager,
        option="speculative_config",
    )


def load(
    settings: VerifierSettings, configs: tuple[SpeculativeConfig, ...], options: LLMOptions
) -> LocalEngine:
    """Load what drafts, then the target. Raises InputError where a model cannot be used."""
    from outrider.llm_engine import LocalEngine
    from verifier_service.backend import load_backend

    attached, vocabularies = _attach(settings, configs, options)
    backend = load_backend(settings, uuid.uuid4().hex, attached=attached)
    try:
        for name, vocabulary in vocabularies.items():
            if vocabulary != backend.text.fingerprint:
                raise InputError(
                    f"speculative_config: {name} drafts in vocabulary {vocabulary}; the target's "
                    f"is {backend.text.fingerprint}"
                )
        return LocalEngine(settings, backend, options.per_request_spec_decode_metrics)
    except BaseException:
        backend.close()
        raise


def _attach(
    settings: VerifierSettings, configs: tuple[SpeculativeConfig, ...], options: LLMOptions
) -> tuple[LocalProposers | None, dict[str, str]]:
    """The proposers of this process, and the vocabularies of those that load a model."""
    from outrider.llm_proposers import Local, LocalProposers

    if not configs:
        return None, {}
    vocabularies: dict[str, str] = {}

    def load(name: str, config: SpeculativeConfig) -> Local:
        # Only those who draft with a model pay for importing what runs it.
        from outrider.llm_draft_model import LocalDraftModel

        model = LocalDraftModel.load(
            name,
            config,
            draft_placement(options),
            rule=settings.rejection_rule,
            max_sequences=settings.max_num_seqs,
        )
        vocabularies[name] = model.vocabulary_fingerprint
        return model

    # Before the target, whose cache is sized by what is left.
    return LocalProposers.of(configs, load), vocabularies


def _pull(store: ModelStore, name: str) -> Path:
    if threading.current_thread() is threading.main_thread():
        return pull_with_progress(store, name)
    # The display takes over a signal, which only the main thread may do.
    return store.pull(name, lambda stage, done, total: None)
