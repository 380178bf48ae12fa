"""What this proposer says of itself, and which verifiers it refuses; knows no stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from speculation.v1 import proposer_pb2, types_pb2

PROTOCOL_VERSION = 1


class HelloRefusedError(Exception):
    """This verifier and this proposer do not fit together; the text says why."""


def describe(
    *,
    instance_id: str,
    name: str,
    method: str,
    max_sequences: int,
    max_draft_tokens: int,
    context_limit: int,
    lookahead: bool,
    q_forms: Sequence[types_pb2.QForm] = (types_pb2.Q_FORM_ONE_HOT,),
    vocabulary_fingerprint: str = "",
    vocabulary_size: int = 0,
    options: Mapping[str, object] | None = None,
) -> proposer_pb2.Capabilities:
    """The capabilities of a proposer that needs no features and drafts from the next position.

    `options` are the method's own, by their names in a speculative config.
    """
    return proposer_pb2.Capabilities(
        protocol_version=PROTOCOL_VERSION,
        instance_id=instance_id,
        name=name,
        method=method,
        vocabulary_fingerprint=vocabulary_fingerprint,
        vocabulary_size=vocabulary_size,
        max_sequences=max_sequences,
        max_draft_tokens=max_draft_tokens,
        context_limit=context_limit,
        q_forms=q_forms,
        first_position=types_pb2.FIRST_POSITION_AFTER_COMMITTED,
        lookahead=lookahead,
        options={key: json.dumps(value) for key, value in (options or {}).items()},
    )


def check_hello(hello: proposer_pb2.Hello, own: proposer_pb2.Capabilities) -> None:
    """Raises HelloRefusedError naming the field, both values and, where it helps, the remedy.

    A verifier that may run more sequences than are followed here, or longer ones, is served: the
    welcome tells it the limits.
    """
    if hello.protocol_version != own.protocol_version:
        raise HelloRefusedError(
            f"protocol_version {hello.protocol_version}: this proposer speaks "
            f"{own.protocol_version}"
        )
    if not hello.verifier_instance_id:
        raise HelloRefusedError("verifier_instance_id is empty: a verifier must name itself")
    # Equal tokenizers are often padded to different sizes: a fingerprint, where there is one,
    # decides alone. The verifier drops ids of a padding that it does not have.
    if own.vocabulary_fingerprint:
        if own.vocabulary_fingerprint != hello.vocabulary_fingerprint:
            raise HelloRefusedError(
                f"vocabulary_fingerprint {hello.vocabulary_fingerprint!r}: this proposer drafts in "
                f"{own.vocabulary_fingerprint!r}; both sides must use one tokenizer"
            )
    elif own.vocabulary_size not in (0, hello.vocabulary_size):
        raise HelloRefusedError(
            f"vocabulary_size {hello.vocabulary_size}: this proposer's is {own.vocabulary_size}"
        )
    if not 1 <= hello.max_draft_tokens <= own.max_draft_tokens:
        raise HelloRefusedError(
            f"max_draft_tokens {hello.max_draft_tokens}: this proposer gives 1 to "
            f"{own.max_draft_tokens}; lower num_speculative_tokens or raise the proposer's "
            "max_draft_tokens"
        )
    if not set(hello.accepted_q_forms) & set(own.q_forms):
        raise HelloRefusedError(
            f"accepted_q_forms {_names(hello.accepted_q_forms)}: this proposer gives "
            f"{_names(own.q_forms)}"
        )
    missing = set(own.required_features) - set(hello.offered_features)
    if missing:
        raise HelloRefusedError(
            "offered_features lack "
            + ", ".join(sorted(types_pb2.FeatureType.Name(feature) for feature in missing))
        )
    if hello.first_position != own.first_position:
        raise HelloRefusedError(
            f"first_position {_position(hello.first_position)}: this proposer's blocks start at "
            f"{_position(own.first_position)}"
        )


def _names(forms: Sequence[types_pb2.QForm]) -> str:
    known = types_pb2.QForm.values()
    return ", ".join(types_pb2.QForm.Name(f) if f in known else str(f) for f in forms) or "none"


def _position(value: types_pb2.FirstPosition) -> str:
    known = types_pb2.FirstPosition.values()
    return types_pb2.FirstPosition.Name(value) if value in known else str(value)
