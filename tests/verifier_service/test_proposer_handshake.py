from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
import torch
from speculation.v1 import proposer_pb2, types_pb2

from outrider.scripted_proposer import ScriptedProposer, capabilities
from tests.verifier_service.proposer_world import World, hello, view, world
from verifier_service.attaching import Target, attach_proposers
from verifier_service.messages import QForm, RejectionRule
from verifier_service.proposer_handshake import HandshakeError, HelloParameters, check_welcome
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState
from verifier_service.settings import VerifierSettings


def offering(**fields: object) -> proposer_pb2.Capabilities:
    result = capabilities()
    for field, value in fields.items():
        result.ClearField(field)  # type: ignore[arg-type]
        if isinstance(value, list):
            getattr(result, field).extend(value)
        else:
            setattr(result, field, value)
    return result


REFUSED = [
    ({"protocol_version": 2}, "protocol version 2; this verifier speaks 1"),
    ({"protocol_version": 0}, "protocol version 0"),
    ({"vocabulary_fingerprint": "beef"}, "vocabulary beef .* the target's is 00ff"),
    ({"vocabulary_size": 999}, "a vocabulary of 999 ids; the target's has 1000"),
    ({"first_position": types_pb2.FIRST_POSITION_AFTER_BONUS}, "FIRST_POSITION_AFTER_BONUS"),
    ({"first_position": types_pb2.FIRST_POSITION_UNSPECIFIED}, "FIRST_POSITION_UNSPECIFIED"),
    ({"first_position": 9}, "position 9"),
    ({"q_forms": []}, "q forms none"),
    ({"q_forms": [types_pb2.Q_FORM_DENSE]}, "q forms Q_FORM_DENSE"),
    ({"required_features": [types_pb2.FEATURE_TYPE_HIDDEN_STATES]}, "HIDDEN_STATES"),
    ({"max_sequences": 0}, "max_sequences 0"),
    ({"max_draft_tokens": 0}, "max_draft_tokens 0"),
    ({"name": ""}, "name ''"),
    ({"name": 'x"} 1\n'}, "name"),
    ({"name": "n" * 65}, "name"),
    ({"method": "two words"}, "method 'two words'"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_a_mismatch_is_refused_in_words(fields: dict[str, object], words: str) -> None:
    with pytest.raises(HandshakeError, match=words):
        check_welcome(offering(**fields), hello())


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_the_hello_says_the_settings_rule(
    rule: RejectionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft model shares the target's noise under one of them only."""
    told: list[HelloParameters] = []

    def take(
        self: ProposerPool, addresses: object, hello: HelloParameters, *rest: object, **more: object
    ) -> None:
        told.append(hello)

    monkeypatch.setattr(ProposerPool, "__init__", take)
    settings = VerifierSettings(
        "m", "unix:v", "m", ("unix:p",), num_speculative_tokens=3, rejection_rule=rule, device="cpu"
    )
    attach_proposers(settings, Target("v", "00ff", 9, (), 64))
    (parameters,) = told
    assert (parameters.on_cpu, parameters.to_proto().hello.device_uuid) == (True, "")
    name = types_pb2.RejectionRule.Name(parameters.to_proto().hello.rejection_rule)
    assert name == f"REJECTION_RULE_{rule.name}"
    assert hello().to_proto().hello.rejection_rule == types_pb2.REJECTION_RULE_UNSPECIFIED


def test_a_target_on_a_card_says_on_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposer on the same one must leave it to the target."""
    told: list[HelloParameters] = []

    def take(
        self: ProposerPool, addresses: object, hello: HelloParameters, *_: object, **__: object
    ) -> None:
        told.append(hello)

    monkeypatch.setattr(ProposerPool, "__init__", take)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    card = SimpleNamespace(uuid=UUID(int=7))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    settings = VerifierSettings(
        "m", "v", "m", ("unix:p",), num_speculative_tokens=3, device="cuda:1"
    )
    attach_proposers(settings, Target("v", "00ff", 9, (), 64))
    assert not told[0].on_cpu
    assert told[0].to_proto().hello.device_uuid == str(UUID(int=7))


def test_limits_are_the_smaller_of_both() -> None:
    limits = check_welcome(
        offering(max_draft_tokens=9, max_sequences=3, context_limit=77, lookahead=False), hello()
    )
    assert (limits.max_draft_tokens, limits.max_sequences, limits.context_limit) == (4, 3, 77)
    assert not limits.lookahead
    assert check_welcome(offering(max_draft_tokens=2), hello()).max_draft_tokens == 2
    assert check_welcome(offering(), hello()).context_limit is None


def test_only_q_forms_of_both_sides_are_agreed_on() -> None:
    both = [types_pb2.Q_FORM_ONE_HOT, types_pb2.Q_FORM_SPARSE, types_pb2.Q_FORM_DENSE]
    limits = check_welcome(
        offering(q_forms=both), hello(accepted_q_forms=(QForm.SPARSE, QForm.COUPLED))
    )
    assert limits.q_forms == {types_pb2.Q_FORM_SPARSE: QForm.SPARSE}


def test_equal_tokenizers_padded_differently_are_one_vocabulary() -> None:
    check_welcome(offering(vocabulary_fingerprint="00ff", vocabulary_size=1024), hello())


def test_the_hello_says_everything() -> None:
    message = hello(accepted_q_forms=(QForm.ONE_HOT,)).to_proto().hello
    assert message == proposer_pb2.Hello(
        protocol_version=1,
        verifier_instance_id="verifier",
        vocabulary_fingerprint="00ff",
        vocabulary_size=1000,
        eos_token_ids=[0],
        max_sequences=8,
        max_draft_tokens=4,
        context_limit=2048,
        accepted_q_forms=[types_pb2.Q_FORM_ONE_HOT],
        first_position=types_pb2.FIRST_POSITION_AFTER_COMMITTED,
    )


@pytest.mark.parametrize(
    ("on_cpu", "address", "taken"),
    [
        (True, "unix:/run/ngram.sock", False),
        (True, "10.0.0.7:50052", True),
        (False, "unix:/run/ngram.sock", True),
    ],
)
def test_look_ahead_is_not_taken_from_who_shares_the_targets_cores(
    on_cpu: bool, address: str, taken: bool
) -> None:
    assert hello(on_cpu=on_cpu).takes_lookahead(address) is taken
    assert hello().to_proto(lookahead=taken).hello.no_lookahead is not taken
    assert check_welcome(offering(lookahead=True), hello(), lookahead=taken).lookahead is taken


def test_each_proposer_of_a_pool_is_told_whether_to_look_ahead() -> None:
    near, far = ScriptedProposer(), ScriptedProposer()
    World({"unix:near": near, "far:1": far}, hello(on_cpu=True))
    assert [said.no_lookahead for said in near.hellos] == [True]
    assert [said.no_lookahead for said in far.hellos] == [False]


@pytest.mark.parametrize(
    "changes",
    [
        {"verifier_instance_id": ""},
        {"vocabulary_fingerprint": ""},
        {"vocabulary_size": 0},
        {"max_sequences": 0},
        {"num_speculative_tokens": 0},
        {"context_limit": -1},
        {"accepted_q_forms": ()},
    ],
)
def test_nonsense_about_oneself_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        hello(**changes)


def test_a_refused_proposer_is_retried_slowly_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer = ScriptedProposer(welcome=offering(protocol_version=2))
    w = world(proposer)
    assert w.link() is LinkState.REFUSED
    assert "protocol version 2" in w.state().detail
    assert w.round(view(1, [1, 2])) == {}
    assert proposer.steps == []
    w.settle(29.0)
    assert len(proposer.hellos) == 1
    w.settle(25.0)
    assert len(proposer.hellos) == 2
    assert len([r for r in caplog.records if "protocol version" in r.getMessage()]) == 1
    proposer.welcome = capabilities()
    w.settle(30.0)
    assert w.link() is LinkState.CONNECTED


@pytest.mark.parametrize("code", ["FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED"])
def test_a_proposer_may_refuse_too(code: str) -> None:
    w = world(serve=False)

    class Refusing(ScriptedProposer):
        def __call__(self, reply, end):  # type: ignore[no-untyped-def]
            self.end = end
            return super().__call__(reply, end)

        def received(self, data: bytes) -> None:
            self.end(code, "vocabulary_size: 1000 where 5 is allowed")

    w.network.serve("unix:a", Refusing())
    w.settle(1.0)
    assert w.link() is LinkState.REFUSED
    assert w.state().detail == f"{code}: vocabulary_size: 1000 where 5 is allowed"


def test_anything_but_a_welcome_first_is_refused() -> None:
    for message in (b"\xff\xff", b"", proposer_pb2.ProposeResponse(drafts={"step_id": 1})):
        w = world(serve=False)

        class Rude(ScriptedProposer):
            def received(self, data: bytes, message=message) -> None:  # type: ignore[no-untyped-def]
                self.push(message)

        w.network.serve("unix:a", Rude())
        w.settle(1.0)
        assert w.link() is LinkState.REFUSED
        assert "no welcome" in w.state().detail


def test_silence_instead_of_a_welcome_times_out() -> None:
    proposer = ScriptedProposer()
    w = world(proposer, serve=False)
    w.network.serve("unix:a", proposer)
    w.network.endpoint("unix:a").held = True
    w.settle(5.5)
    assert w.link() is LinkState.CONNECTING
    assert w.state().detail == "no welcome within 5 s"
    w.network.release("unix:a")
    w.settle(3.0)
    assert w.link() is LinkState.CONNECTED
