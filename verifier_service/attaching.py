"""The proposers that a verifier's settings name, connected.

Knows settings and what a target is to proposers; does not know when or where an engine is built.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import InputError
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_link import GrpcTransport
from verifier_service.proposer_pool import ProposerPool
from verifier_service.settings import VerifierSettings


@dataclass(frozen=True, slots=True)
class Target:
    """What proposers hear of the target: sizes in ids and tokens."""

    instance_id: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int


def attach_proposers(settings: VerifierSettings, target: Target) -> ProposerPool | None:
    """The settings' proposers, connecting in the background; None where nothing is to be drafted.

    Raises InputError where a setting does not allow it.
    """
    if not settings.proposers or not settings.num_speculative_tokens:
        return None
    if not settings.draft_deadline_ms > 0:
        raise InputError(
            f"--draft-deadline-ms: {settings.draft_deadline_ms:g} is not allowed with "
            "proposers; it must be above 0"
        )
    on_cpu, uuid = _runs_on(settings.device)
    hello = HelloParameters(
        verifier_instance_id=target.instance_id,
        vocabulary_fingerprint=target.vocabulary_fingerprint,
        vocabulary_size=target.vocabulary_size,
        eos_token_ids=target.eos_token_ids,
        max_sequences=settings.max_num_seqs,
        num_speculative_tokens=settings.num_speculative_tokens,
        context_limit=target.max_model_len,
        on_cpu=on_cpu,
        rejection_rule=settings.rejection_rule,
        device_uuid=uuid,
    )
    return ProposerPool(
        settings.proposers,
        hello,
        settings.draft_deadline_ms / 1000,
        expected=settings.expected_proposers,
        transport=GrpcTransport(settings.credentials),
    )


def _runs_on(device: str) -> tuple[bool, str]:
    """Whether the target runs on a CPU, and its card's UUID where it does not."""
    # Only a process that builds an engine pays for importing one.
    from verifier_service.engines.device_uuid import device_uuid
    from verifier_service.engines.loading import ModelLoadError, resolve_device

    try:
        resolved = resolve_device(device)
    except ModelLoadError as error:
        raise InputError(f"model: {error}") from error
    return resolved.type == "cpu", device_uuid(resolved)
