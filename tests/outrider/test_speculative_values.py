"""Every value that the table calls good is one that a proposer takes, and drafts with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest
from speculation.v1 import proposer_pb2

from outrider.draft_models import draft_model_settings
from outrider.llm_proposers import LocalProposers
from outrider.speculative_options import parse_speculative_config
from proposer_service.settings import ProposerSettings
from tests.outrider.speculative_table import WORKS, Row
from verifier_service.messages import Sampling, SequenceView
from verifier_service.proposer_expectation import ExpectedProposer

TEXT = [*range(60), 7, *range(60)]


def cases(rows: Iterable[Row]) -> list[Any]:
    return [
        pytest.param(row, value, id=f"{row.base['method']}-{row.key}-{value!r}"[:90])
        for row in rows
        for value in (*row.good, *row.edge)
    ]


ALLOWED = cases(WORKS)
# What a draft model makes of its options needs one, and is seen elsewhere.
MODEL_FREE = cases(row for row in WORKS if row.base["method"] != "draft_model")
# Of a draft model's options these are not told: it has other names on other machines, and there is
# one device.
UNTOLD = {"model", "revision", "draft_tensor_parallel_size"}


def view(ids: list[int], number: int) -> SequenceView:
    return SequenceView(number, ids, 30, 4, Sampling(), cache_salt="", only="")


@pytest.mark.parametrize(("row", "value"), MODEL_FREE)
def test_drafts_are_made_with_it(row: Row, value: Any) -> None:
    source = LocalProposers.of(parse_speculative_config({**row.base, row.key: value}))
    for end in range(100, len(TEXT)):
        source.send([view(TEXT[:end], 1), view(TEXT[: end - 40], 2)], [])
        source.collect()
    source.send([], [(1, True), (2, False)])
    (state,) = source.states()
    assert state.faults == 0


@pytest.mark.parametrize(("row", "value"), ALLOWED)
def test_the_handshake_knows_it_again(row: Row, value: Any) -> None:
    (config,) = parse_speculative_config({**row.base, row.key: value})
    names = {field.name for field in dataclasses.fields(ProposerSettings)}
    own = {name: getattr(config, name) for name in type(config).model_fields if name in names}
    settings = ProposerSettings("unix:p", draft_model=draft_model_settings(config), **own)
    told = {key: json.dumps(item) for key, item in settings.method_options().items()}
    capabilities = proposer_pb2.Capabilities(method=settings.method, options=told)
    expected = ExpectedProposer(
        config.method, config.num_speculative_tokens, config.method_options()
    )
    assert set(expected.options) - UNTOLD <= set(told)
    expected.check(capabilities)
