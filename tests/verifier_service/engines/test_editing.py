"""What the editor plans, keeps and refuses; exactness/test_processed_rows has the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from verifier_service.engines.base import Chunk
from verifier_service.engines.editing import LogitEditor, has_edits
from verifier_service.messages import Sampling

V = 40
FULL = Sampling(
    logit_bias=((1, 2.0),),
    bad_words=((3,), (1, 2)),
    allowed_token_ids=tuple(range(30)),
    min_tokens=5,
    stop_token_ids=frozenset({7}),
    presence_penalty=0.5,
    repetition_penalty=1.5,
)


def chunk(
    sampling: Sampling, ids: list[int], drafts: Sequence[int] = (), prompt: int = 1, **fields: Any
) -> Chunk:
    return Chunk(
        ids=[ids[-1], *drafts],
        start=len(ids) - 1,
        blocks=[],
        drafts=len(drafts),
        samples=True,
        sampling=sampling,
        sequence_ids=ids,
        prompt_length=prompt,
        **fields,
    )


@pytest.mark.parametrize(
    ("sampling", "edits"),
    [
        (Sampling(), False),
        (Sampling(temperature=0.0, top_k=5, top_p=0.5, min_p=0.5), False),
        (Sampling(stop_token_ids=frozenset({1})), False),
        (Sampling(presence_penalty=-0.1), True),
        (Sampling(frequency_penalty=0.1), True),
        (Sampling(repetition_penalty=0.9), True),
        (Sampling(logit_bias=((1, 0.1),)), True),
        (Sampling(bad_words=((1,),)), True),
        (Sampling(allowed_token_ids=(1,)), True),
        (Sampling(min_tokens=1), True),
    ],
)
def test_which_requests_have_edits(sampling: Sampling, edits: bool) -> None:
    assert has_edits(chunk(sampling, [1, 2])) is edits
    assert (LogitEditor(V).plan([chunk(sampling, [1, 2], [3])]) is not None) is edits


def test_a_mask_alone_is_an_edit() -> None:
    mask = np.full((1, 2), -1, dtype=np.int32)
    assert has_edits(chunk(Sampling(), [1, 2], mask=mask))


def test_only_what_is_asked_for_is_planned() -> None:
    edits = LogitEditor(V).plan([chunk(Sampling(presence_penalty=1.0), [1, 2, 2])])
    assert edits is not None
    assert edits.penalties is not None
    assert (edits.masks, edits.allowed, edits.forbidden, edits.bias) == (None,) * 4
    # Only what the output said: the prompt's 1 is no presence.
    assert edits.penalties.at.tolist() == [2]


def test_rows_of_other_sequences_are_not_touched() -> None:
    plain = chunk(Sampling(), [1, 2], [3, 4])
    edits = LogitEditor(V).plan([plain, chunk(FULL, [1, 2], [5]), plain])
    assert edits is not None
    logits = torch.randn(8, V, generator=torch.Generator().manual_seed(1))
    edited, empty = edits.apply(logits)
    assert torch.equal(edited[:3], logits[:3])
    assert torch.equal(edited[5:], logits[5:])
    assert (edited[3:5] != logits[3:5]).any(dim=1).all()
    assert empty is not None
    assert not empty.any()


def test_min_tokens_counts_the_drafts_before_a_row() -> None:
    """Three are said, five must be: rows behind two drafts and more may stop."""
    sampling = Sampling(min_tokens=5, stop_token_ids=frozenset({7, 9}))
    edits = LogitEditor(V).plan([chunk(sampling, [0, 1, 2, 3], [4, 5, 6, 8])])
    assert edits is not None and edits.forbidden is not None
    assert sorted(edits.forbidden.tolist()) == [7, 9, V + 7, V + 9]
    later = chunk(sampling, [0, 1, 2, 3, 4, 5], [6])
    edits = LogitEditor(V).plan([later])
    assert edits is not None and edits.forbidden is None


def test_bad_words_do_not_reach_into_the_prompt() -> None:
    """As in vLLM: a word that begins in the prompt is not bad."""
    sampling = Sampling(bad_words=((1, 2),))
    inside = LogitEditor(V).plan([chunk(sampling, [5, 1], prompt=2)])
    assert inside is not None and inside.forbidden is None
    output = LogitEditor(V).plan([chunk(sampling, [5, 1], prompt=1)])
    assert output is not None and output.forbidden is not None
    assert output.forbidden.tolist() == [2]


def test_a_sequence_is_prepared_once_and_let_go_of() -> None:
    editor = LogitEditor(V)
    ids = [1, 2]
    editor.plan([chunk(FULL, ids)])
    (first,) = editor._rules.values()
    ids.append(3)
    editor.plan([chunk(FULL, ids), chunk(Sampling(), [1])])
    assert list(editor._rules.values()) == [first]
    editor.plan([chunk(Sampling(), [1])])
    assert editor._rules == {}


def test_another_request_with_equal_ids_shares_nothing() -> None:
    """Sequences are told apart by their lists, not by what is in them."""
    editor = LogitEditor(V)
    mine, other = [1, 2], [1, 2]
    harsh = Sampling(frequency_penalty=2.0)
    editor.plan([chunk(harsh, mine), chunk(replace(harsh, frequency_penalty=1.0), other)])
    mine += [2, 2]
    edits = editor.plan([chunk(harsh, mine), chunk(replace(harsh, frequency_penalty=1.0), other)])
    assert edits is not None and edits.penalties is not None
    assert edits.penalties.frequencies.tolist() == [6.0, 1.0]


def test_a_chunk_that_is_not_at_its_sequences_end_is_a_bug() -> None:
    wrong = replace(chunk(FULL, [1, 2, 3]), sequence_ids=[1, 2])
    with pytest.raises(ValueError, match="belongs to no sequence of 2 ids"):
        LogitEditor(V).plan([wrong])


@pytest.mark.parametrize(
    "mask",
    [
        np.zeros((1, 2), dtype=np.int32),
        np.zeros((2, 1), dtype=np.int32),
        np.zeros((2, 2), dtype=np.int64),
    ],
)
def test_a_mask_of_another_shape_is_a_bug(mask: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"it must be int32 \(2, 2\)"):
        LogitEditor(V).plan([chunk(Sampling(), [1, 2], [3], mask=mask)])
