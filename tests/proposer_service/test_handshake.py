"""A hello is taken, or refused with the field that does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.handshake import HelloRefusedError, check_hello, describe
from tests.proposer_service.verifier import hello


def capabilities(**changes: Any) -> proposer_pb2.Capabilities:
    fields: dict[str, Any] = {
        "instance_id": "proposer-1",
        "name": "ngram",
        "method": "ngram",
        "max_sequences": 8,
        "max_draft_tokens": 8,
        "context_limit": 0,
        "lookahead": True,
    }
    return describe(**(fields | changes))


def test_a_fitting_hello_is_taken() -> None:
    check_hello(hello(), capabilities())


def test_ids_of_any_vocabulary_are_taken_where_the_method_needs_none() -> None:
    check_hello(hello(vocabulary_size=5, vocabulary_fingerprint="any"), capabilities())


def test_a_verifier_of_more_or_longer_sequences_is_served() -> None:
    check_hello(hello(max_sequences=9, context_limit=512), capabilities(context_limit=100))


@pytest.mark.parametrize(
    ("changes", "own", "words"),
    [
        ({"protocol_version": 2}, {}, "protocol_version 2"),
        ({"verifier_instance_id": ""}, {}, "verifier_instance_id"),
        ({"vocabulary_size": 5}, {"vocabulary_size": 7}, "vocabulary_size 5"),
        ({"vocabulary_fingerprint": "a"}, {"vocabulary_fingerprint": "b"}, "'a'.*'b'"),
        ({"max_draft_tokens": 9}, {}, "max_draft_tokens 9.*1 to 8"),
        ({"max_draft_tokens": 0}, {}, "max_draft_tokens 0"),
        (
            {"accepted_q_forms": [types_pb2.Q_FORM_SPARSE]},
            {},
            "Q_FORM_SPARSE.*gives Q_FORM_ONE_HOT",
        ),
        ({"accepted_q_forms": []}, {}, "none"),
        (
            {"first_position": types_pb2.FIRST_POSITION_AFTER_BONUS},
            {},
            "FIRST_POSITION_AFTER_BONUS",
        ),
        ({"first_position": 0}, {}, "FIRST_POSITION_UNSPECIFIED"),
    ],
)
def test_a_mismatch_is_refused_in_words(
    changes: dict[str, Any], own: dict[str, Any], words: str
) -> None:
    with pytest.raises(HelloRefusedError, match=words):
        check_hello(hello(**changes), capabilities(**own))


def test_features_that_are_not_offered_are_named() -> None:
    own = capabilities()
    own.required_features.append(types_pb2.FEATURE_TYPE_HIDDEN_STATES)
    with pytest.raises(HelloRefusedError, match="FEATURE_TYPE_HIDDEN_STATES"):
        check_hello(hello(), own)
    check_hello(hello(offered_features=[types_pb2.FEATURE_TYPE_HIDDEN_STATES]), own)
