"""The verifier's hello and its judgement of a proposer's welcome; knows no stream.

A mismatch is found here, in words, before the first sequence is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from speculation.v1 import proposer_pb2, types_pb2

from verifier_service.draft_checks import Q_FORMS
from verifier_service.messages import QForm, RejectionRule

PROTOCOL_VERSION = 1
_RULES: dict[RejectionRule | None, types_pb2.RejectionRule] = {
    None: types_pb2.REJECTION_RULE_UNSPECIFIED,
    RejectionRule.COUPLED: types_pb2.REJECTION_RULE_COUPLED,
    RejectionRule.STANDARD: types_pb2.REJECTION_RULE_STANDARD,
    RejectionRule.BLOCK: types_pb2.REJECTION_RULE_BLOCK,
}
# Names become metric labels and log words.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class HandshakeError(Exception):
    """The proposer cannot serve this verifier; the message says why."""


@dataclass(frozen=True, slots=True)
class HelloParameters:
    """What a verifier tells every proposer about itself.

    `num_speculative_tokens` is the ceiling K of drafts in a block, `context_limit` the target's
    context in tokens, `max_sequences` how many sequences run at once. `on_cpu`: the target runs on
    this machine's cores, which a proposer behind a Unix socket shares. `rejection_rule` None is not
    told. `device_uuid` is the target's card, empty for none.
    """

    verifier_instance_id: str
    vocabulary_fingerprint: str
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    max_sequences: int
    num_speculative_tokens: int
    context_limit: int
    accepted_q_forms: tuple[QForm, ...] = (QForm.COUPLED, QForm.ONE_HOT, QForm.SPARSE)
    on_cpu: bool = False
    rejection_rule: RejectionRule | None = None
    device_uuid: str = ""

    def __post_init__(self) -> None:
        for field, given in (
            ("verifier_instance_id", self.verifier_instance_id),
            ("vocabulary_fingerprint", self.vocabulary_fingerprint),
            ("accepted_q_forms", self.accepted_q_forms),
        ):
            if not given:
                raise ValueError(f"{field} is empty; it must have a value")
        for field, value in (
            ("vocabulary_size", self.vocabulary_size),
            ("max_sequences", self.max_sequences),
            ("num_speculative_tokens", self.num_speculative_tokens),
            ("context_limit", self.context_limit),
        ):
            if value < 1:
                raise ValueError(f"{field}={value}; it must be at least 1")

    def takes_lookahead(self, address: str) -> bool:
        """Whether the proposer at `address` may push blocks while the target runs."""
        return not (self.on_cpu and address.startswith("unix:"))

    def to_proto(self, *, lookahead: bool = True) -> proposer_pb2.ProposeRequest:
        return proposer_pb2.ProposeRequest(
            hello=proposer_pb2.Hello(
                protocol_version=PROTOCOL_VERSION,
                verifier_instance_id=self.verifier_instance_id,
                vocabulary_fingerprint=self.vocabulary_fingerprint,
                vocabulary_size=self.vocabulary_size,
                eos_token_ids=self.eos_token_ids,
                max_sequences=self.max_sequences,
                max_draft_tokens=self.num_speculative_tokens,
                context_limit=self.context_limit,
                accepted_q_forms=[
                    types_pb2.QForm.Name(number)
                    for number, form in Q_FORMS.items()
                    if form in self.accepted_q_forms
                ],
                first_position=types_pb2.FIRST_POSITION_AFTER_COMMITTED,
                no_lookahead=not lookahead,
                rejection_rule=_RULES[self.rejection_rule],
                device_uuid=self.device_uuid,
            )
        )


@dataclass(frozen=True, slots=True)
class ProposerLimits:
    """What was agreed with one proposer: never more is asked of it.

    `context_limit` is in tokens, None where it has none; `q_forms` are by number on the wire.
    """

    name: str
    method: str
    max_sequences: int
    max_draft_tokens: int
    context_limit: int | None
    q_forms: dict[int, QForm]
    lookahead: bool


def check_welcome(
    capabilities: proposer_pb2.Capabilities, hello: HelloParameters, *, lookahead: bool = True
) -> ProposerLimits:
    """Judge what a proposer says of itself; `lookahead` is what it was told.

    Raises HandshakeError with the reason in words.
    """
    c = capabilities
    if c.protocol_version != PROTOCOL_VERSION:
        raise HandshakeError(
            f"speaks protocol version {c.protocol_version}; this verifier speaks {PROTOCOL_VERSION}"
        )
    for field, value in (("name", c.name), ("method", c.method)):
        if not _NAME.fullmatch(value):
            raise HandshakeError(
                f"{field} {value[:80]!r} is not 1 to 64 letters, digits or characters of ._-"
            )
    _check_vocabulary(c, hello)
    if c.first_position != types_pb2.FIRST_POSITION_AFTER_COMMITTED:
        raise HandshakeError(
            f"drafts from position {_enum_name(types_pb2.FirstPosition.Name, c.first_position)}; "
            "this verifier takes FIRST_POSITION_AFTER_COMMITTED"
        )
    q_forms = {
        number: form
        for number, form in Q_FORMS.items()
        if number in c.q_forms and form in hello.accepted_q_forms
    }
    if not q_forms:
        names = [_enum_name(types_pb2.QForm.Name, number) for number in c.q_forms]
        given = ", ".join(names) or "none"
        taken = ", ".join(form.value for form in hello.accepted_q_forms)
        raise HandshakeError(f"gives q forms {given}; this verifier takes {taken}")
    if c.required_features:
        wanted = ", ".join(_enum_name(types_pb2.FeatureType.Name, n) for n in c.required_features)
        raise HandshakeError(f"needs the target's {wanted}; this verifier offers no features")
    for field, number in (
        ("max_sequences", c.max_sequences),
        ("max_draft_tokens", c.max_draft_tokens),
    ):
        if number < 1:
            raise HandshakeError(f"offers {field} {number}; at least 1 is needed")
    return ProposerLimits(
        name=c.name,
        method=c.method,
        max_sequences=c.max_sequences,
        max_draft_tokens=min(c.max_draft_tokens, hello.num_speculative_tokens),
        context_limit=c.context_limit or None,
        q_forms=q_forms,
        lookahead=c.lookahead and lookahead,
    )


def _check_vocabulary(c: proposer_pb2.Capabilities, hello: HelloParameters) -> None:
    # Equal tokenizers are often padded to different sizes, so where there is a fingerprint it
    # alone decides; ids in the padding are caught block by block.
    if c.vocabulary_fingerprint:
        if c.vocabulary_fingerprint != hello.vocabulary_fingerprint:
            raise HandshakeError(
                f"drafts in vocabulary {c.vocabulary_fingerprint[:80]} ({c.vocabulary_size} ids); "
                f"the target's is {hello.vocabulary_fingerprint} ({hello.vocabulary_size} ids)"
            )
    elif c.vocabulary_size not in (0, hello.vocabulary_size):
        raise HandshakeError(
            f"drafts in a vocabulary of {c.vocabulary_size} ids; "
            f"the target's has {hello.vocabulary_size}"
        )


def _enum_name(name: Callable[[int], str], number: int) -> str:
    try:
        return name(number)
    except ValueError:  # A number of a newer protocol.
        return str(number)
