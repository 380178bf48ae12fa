"""What makes a draft block acceptable; knows messages, not streams or sequences.

Everything here reads what a proposer sent, so nothing is trusted: each check names the reason under
which a block is dropped and counted. Whether a block is *current* is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from speculation.v1 import proposer_pb2, types_pb2

from verifier_service.messages import DraftBlock, QForm, SparseRow

Q_UNIT = 1 << 32

# By number on the wire.
Q_FORMS: dict[int, QForm] = {
    types_pb2.Q_FORM_COUPLED: QForm.COUPLED,
    types_pb2.Q_FORM_ONE_HOT: QForm.ONE_HOT,
    types_pb2.Q_FORM_SPARSE: QForm.SPARSE,
}


class BadBlockError(Exception):
    """A block broke the protocol; `reason` is the name it is counted under."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check_block(
    block: proposer_pb2.DraftBlock,
    *,
    proposer: str,
    max_draft_tokens: int,
    vocabulary_size: int,
    q_forms: Mapping[int, QForm],
    lookahead: bool = False,
) -> DraftBlock:
    """The block as the scheduler takes it: a chain of ids in range, with a sound q.

    `q_forms` are the forms agreed on, by number on the wire. Raises BadBlockError: `too_long`,
    `out_of_range`, `tree`, `unsupported_q_form`, `bad_q`, `bad_confidence`, `bad_match_length`.
    """
    ids = tuple(block.token_ids[:])
    if len(ids) > max_draft_tokens:
        raise BadBlockError("too_long", f"{len(ids)} ids where {max_draft_tokens} were asked for")
    if ids and not 0 <= min(ids) <= max(ids) < vocabulary_size:
        raise BadBlockError("out_of_range", f"ids {ids} outside 0..{vocabulary_size - 1}")
    if block.parents and list(block.parents) != list(range(-1, len(ids) - 1)):
        raise BadBlockError("tree", f"parents {list(block.parents)} are not a chain")
    q_form = q_forms.get(block.q_form)
    if q_form is None:
        agreed = ", ".join(form.value for form in q_forms.values())
        raise BadBlockError("unsupported_q_form", f"q form {block.q_form}; agreed on: {agreed}")
    confidences = tuple(block.confidences) if block.confidences else ()
    # Comparisons do not see a NaN, the sum does.
    if confidences and not (
        len(confidences) == len(ids)
        and min(confidences) >= 0.0
        and max(confidences) <= 1.0
        and isfinite(sum(confidences))
    ):
        raise BadBlockError(
            "bad_confidence", f"{confidences} is not one number of 0..1 for each of {len(ids)} ids"
        )
    base_length, match_length = block.base_length, block.match_length
    if match_length > base_length:
        raise BadBlockError("bad_match_length", f"match of {match_length} in {base_length} ids")
    q: tuple[SparseRow, ...] = ()
    if block.HasField("q") or (q_form is QForm.SPARSE and ids):
        q = _check_q(block.q, ids, q_form, vocabulary_size)
    return DraftBlock(
        proposer,
        base_length,
        ids,
        q_form,
        q,
        match_length,
        confidences,
        block.draft_ns,
        lookahead,
    )


def cut_block(block: DraftBlock, length: int) -> DraftBlock:
    """The block's first `length` drafts; exact for any q, since the cut looks at no id."""
    if len(block.token_ids) <= length:
        return block
    # By place: `replace` takes several times as long, for each sequence between two forwards.
    return DraftBlock(
        block.proposer,
        block.base_length,
        block.token_ids[:length],
        block.q_form,
        block.q[:length],
        block.match_length,
        block.confidences[:length],
        block.draft_ns,
        block.lookahead_hit,
        block.refused,
    )


def _check_q(
    q: types_pb2.SparseDistribution, ids: Sequence[int], q_form: QForm, vocabulary_size: int
) -> tuple[SparseRow, ...]:
    lengths = list(q.row_lengths)
    if q_form is not QForm.SPARSE:
        if lengths or q.token_ids or q.masses:
            raise BadBlockError("bad_q", f"q rows with the {q_form.value} form, which has none")
        return ()
    total = sum(lengths)
    if len(lengths) != len(ids) or not len(q.token_ids) == len(q.masses) == total:
        raise BadBlockError(
            "bad_q",
            f"{len(lengths)} rows of {total} entries for {len(ids)} drafts, with "
            f"{len(q.token_ids)} ids and {len(q.masses)} masses",
        )
    rows = []
    start = 0
    for draft, length in zip(ids, lengths, strict=True):
        row_ids = tuple(q.token_ids[start : start + length])
        masses = tuple(q.masses[start : start + length])
        start += length
        _check_row(draft, row_ids, masses, vocabulary_size)
        rows.append(SparseRow(row_ids, masses))
    return tuple(rows)


def _check_row(
    draft: int, ids: tuple[int, ...], masses: tuple[int, ...], vocabulary_size: int
) -> None:
    if sum(masses) != Q_UNIT or 0 in masses:
        raise BadBlockError("bad_q", f"a row's masses sum to {sum(masses)}, not to 2^32, or hold 0")
    if not 0 <= min(ids) <= max(ids) < vocabulary_size or len(set(ids)) != len(ids):
        raise BadBlockError("bad_q", f"a row's ids repeat or leave 0..{vocabulary_size - 1}")
    if draft not in ids:
        raise BadBlockError("bad_q", f"draft {draft} has no mass in the q it was drawn from")
