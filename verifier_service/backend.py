"""What a verifier serves with once its model is loaded, and how that is put together.

Knows the order in which the parts are made; does not know what they do. Loading blocks for
seconds to minutes and belongs on a thread of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from speculation.v1 import verifier_pb2

from outrider.errors import InputError
from verifier_service.attaching import Target, attach_proposers
from verifier_service.core import EngineCore
from verifier_service.grammar.grammars import Grammars, Structures
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import DraftSource, NoDrafts
from verifier_service.settings import VerifierSettings
from verifier_service.target_facts import SamplingDefaults, read_target_facts
from verifier_service.text import Text

if TYPE_CHECKING:
    from verifier_service.engine_process.process import EngineProcess

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
    """The loaded parts; `source` is closed after the core.

    `structures` makes what holds answers to structures, given the model's vocabulary.
    """

    core: EngineCore
    text: Text
    proposers: ProposerStates
    defaults: SamplingDefaults
    source: DraftSource
    structures: Callable[[Callable[[], Vocabulary]], Structures] = Grammars

    def close(self) -> None:
        """Stop the engine's thread, then the proposers' streams. Blocks. Idempotent."""
        self.core.shutdown()
        self.source.close()


def load_backend(
    settings: VerifierSettings,
    instance_id: str,
    *,
    attached: AttachedSource | None = None,
    process: EngineProcess | None = None,
) -> Backend:
    """Read the model folder, connect the proposers, build the core.

    `attached` are proposers of this process, instead of those at the settings' addresses. With a
    `process` core and proposers are in it, without one in this process. Raises InputError where the
    folder cannot be used, OperationError where the process ends.
    """
    folder = Path(settings.model)
    with _stage("config"):
        facts = read_target_facts(folder, settings.max_model_len)
    with _stage("tokenizer"):
        text = Text.load(folder)
    target = Target(
        instance_id=instance_id,
        vocabulary_fingerprint=text.fingerprint,
        vocabulary_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        max_model_len=facts.max_model_len,
    )
    if process is not None:
        return _apart(settings, target, text, facts.defaults, process)
    return _together(settings, target, text, facts.defaults, attached)


def _together(
    settings: VerifierSettings,
    target: Target,
    text: Text,
    defaults: SamplingDefaults,
    attached: AttachedSource | None,
) -> Backend:
    """The core as a thread of this process."""
    # Only a process that builds an engine pays for importing one.
    from verifier_service.build import build_core
    from verifier_service.engines.loading import ModelLoadError

    pool = attached or attach_proposers(settings, target)
    source: DraftSource = pool or NoDrafts()
    try:
        with _stage("engine"):
            core = build_core(settings, source)
    except BaseException as error:
        source.close()
        if isinstance(error, ModelLoadError):
            raise InputError(f"model: {error}") from error
        raise
    return Backend(core, text, pool or NoProposers(), defaults, source)


def _apart(
    settings: VerifierSettings,
    target: Target,
    text: Text,
    defaults: SamplingDefaults,
    process: EngineProcess,
) -> Backend:
    """The core in a process of its own, which has the proposers, too."""
    from verifier_service.engine_process.remote_core import start_core
    from verifier_service.engine_process.structures import TriedStructures

    with _stage("engine"):
        core = start_core(process, settings, target)
    return Backend(
        core,
        text,
        core,
        defaults,
        NoDrafts(),
        structures=lambda vocabulary: TriedStructures(vocabulary, core.send),
    )


@contextmanager
def _stage(name: str) -> Iterator[None]:
    begun = time.monotonic()
    logger.info("verifier loading stage=%s", name)
    yield
    logger.info("verifier loaded stage=%s seconds=%.2f", name, time.monotonic() - begun)
