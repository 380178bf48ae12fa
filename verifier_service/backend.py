"""What a verifier serves with once its model is loaded, and how that is put together.

Knows the order in which the parts are made; does not know what they do. Loading blocks for
seconds to minutes and belongs on a thread of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from speculation.v1 import verifier_pb2

from outrider.errors import InputError
from verifier_service.core import EngineCore
from verifier_service.messages import DraftSource, NoDrafts
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_link import GrpcTransport
from verifier_service.proposer_pool import ProposerPool
from verifier_service.settings import VerifierSettings
from verifier_service.target_facts import SamplingDefaults, read_target_facts
from verifier_service.text import Text

logger = logging.getLogger(__name__)


class AttachedProposer(Protocol):
    """One proposer's state at one moment; `name` is empty until its first welcome."""

    @property
    def name(self) -> str: ...

    def to_proto(self) -> verifier_pb2.ProposerState: ...


class ProposerStates(Protocol):
    """Where the edge reads about the proposers."""

    def states(self) -> Sequence[AttachedProposer]: ...


class AttachedSource(DraftSource, ProposerStates, Protocol):
    """Drafts, and who makes them."""


class NoProposers:
    """A verifier that decodes plainly."""

    def states(self) -> Sequence[AttachedProposer]:
        return ()


@dataclass(frozen=True, slots=True)
class Backend:
    """The loaded parts; `source` is closed after the core."""

    core: EngineCore
    text: Text
    proposers: ProposerStates
    defaults: SamplingDefaults
    source: DraftSource

    def close(self) -> None:
        """Stop the engine's thread, then the proposers' streams. Blocks. Idempotent."""
        self.core.shutdown()
        self.source.close()


def load_backend(
    settings: VerifierSettings, instance_id: str, *, attached: AttachedSource | None = None
) -> Backend:
    """Read the model folder, connect the proposers, build the core.

    `attached` are proposers of this process, instead of those at the settings' addresses. Raises
    InputError where the folder cannot be used.
    """
    # Only a process that builds an engine pays for importing one.
    from verifier_service.build import build_core
    from verifier_service.engines.loading import ModelLoadError

    folder = Path(settings.model)
    with _stage("config"):
        facts = read_target_facts(folder, settings.max_model_len)
    with _stage("tokenizer"):
        text = Text.load(folder)
    proposers: ProposerStates = NoProposers()
    source: DraftSource = NoDrafts()
    if attached is not None:
        proposers = source = attached
    elif settings.proposers and settings.num_speculative_tokens > 0:
        if not settings.draft_deadline_ms > 0:
            raise InputError(
                f"--draft-deadline-ms: {settings.draft_deadline_ms:g} is not allowed with "
                "proposers; it must be above 0"
            )
        hello = HelloParameters(
            verifier_instance_id=instance_id,
            vocabulary_fingerprint=text.fingerprint,
            vocabulary_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            max_sequences=settings.max_num_seqs,
            num_speculative_tokens=settings.num_speculative_tokens,
            context_limit=facts.max_model_len,
            on_cpu=_on_cpu(settings.device),
        )
        proposers = source = ProposerPool(
            settings.proposers,
            hello,
            settings.draft_deadline_ms / 1000,
            expected=settings.expected_proposers,
            transport=GrpcTransport(settings.credentials),
        )
    try:
        with _stage("engine"):
            core = build_core(settings, source)
    except BaseException as error:
        source.close()
        if isinstance(error, ModelLoadError):
            raise InputError(f"model: {error}") from error
        raise
    return Backend(core, text, proposers, facts.defaults, source)


def _on_cpu(device: str) -> bool:
    from verifier_service.engines.loading import ModelLoadError, resolve_device

    try:
        return resolve_device(device).type == "cpu"
    except ModelLoadError as error:
        raise InputError(f"model: {error}") from error


@contextmanager
def _stage(name: str) -> Iterator[None]:
    begun = time.monotonic()
    logger.info("verifier loading stage=%s", name)
    yield
    logger.info("verifier loaded stage=%s seconds=%.2f", name, time.monotonic() - begun)
