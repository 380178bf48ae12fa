"""From a step's logits to its verdicts: edits, filters, the rejection rule, one read at the end.

Knows chunks, logits and the rules; does not know the model, the cache or requests. Everything
until the verdicts are tensors of the engine's device; the host reads one small result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.editing import LogitEditor
from verifier_service.engines.layout import Choices
from verifier_service.messages import QForm, RejectionRule
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import SparseQ, VerifyInputs, pack_q, verify
from verifier_service.sampling import SamplingFlags, pack_rows, process_logits

NOTHING_ALLOWED = (
    "no token is allowed any more: allowed_token_ids, bad_words, min_tokens and the output's "
    "structure exclude one another"
)


class Chooser:
    """Chooses the tokens of one engine's steps. Not thread-safe."""

    def __init__(self, rule: RejectionRule, vocab_size: int, device: torch.device | str) -> None:
        self._rule = rule
        self._device = torch.device(device)
        self._noise = VocabularyNoise(vocab_size, device)
        self._editor = LogitEditor(vocab_size, device)

    @property
    def noise(self) -> VocabularyNoise:
        """The noise of this engine's vocabulary."""
        return self._noise

    def verdicts(self, logits: Tensor, choices: Choices, chunks: Sequence[Chunk]) -> list[Verdict]:
        """See `begin`; waits for what it gives."""
        return self.begin(logits, choices, chunks)()

    def begin(
        self, logits: Tensor, choices: Choices, chunks: Sequence[Chunk]
    ) -> Callable[[], list[Verdict]]:
        """Have the device choose; the function waits for the verdicts of the chunks, in order.

        All chunks choose; logits [R, V] are the target's own.
        A round ends before the first row in which nothing is allowed; one that would begin there
        has a refusal instead of tokens.
        """
        edits = self._editor.plan(chunks)
        empty: Tensor | None = None
        if edits is not None:
            logits, empty = edits.apply(logits)
        flags = SamplingFlags.of(chunk.sampling for chunk in chunks)
        rows = pack_rows(
            [
                (chunk.sampling, chunk.start + len(chunk.ids) - chunk.drafts, chunk.drafts + 1)
                for chunk in chunks
            ],
            self._device,
        )
        inputs = VerifyInputs(
            logits=process_logits(logits, rows, flags),
            rows=rows,
            flags=flags,
            row_index=choices.row_index,
            draft_ids=choices.draft_ids,
            draft_lengths=choices.draft_lengths,
            q=self._q(choices, chunks),
        )
        result = verify(self._rule, inputs, self._noise)
        told = torch.cat((result.accepted.unsqueeze(1), result.tokens), dim=1)

        def read() -> list[Verdict]:
            verdicts = [Verdict(row[0], row[1 : row[0] + 2]) for row in told.tolist()]
            return verdicts if empty is None else _cut(verdicts, empty.tolist(), chunks)

        return read

    def _q(self, choices: Choices, chunks: Sequence[Chunk]) -> SparseQ | None:
        if self._rule is RejectionRule.COUPLED or all(
            chunk.q_form is not QForm.SPARSE for chunk in chunks
        ):
            return None
        drafts = [chunk.ids[len(chunk.ids) - chunk.drafts :] for chunk in chunks]
        width = choices.draft_ids.shape[1]
        return pack_q(drafts, [chunk.q or None for chunk in chunks], width, self._device)


def _cut(verdicts: list[Verdict], empty: list[bool], chunks: Sequence[Chunk]) -> list[Verdict]:
    """The verdicts without what a row chose in which nothing was allowed, and all behind it.

    A draft accepted in the row before ends the round in place of a token of the target's own:
    either is distributed as the rule says, and the next round begins with the empty row.
    """
    cut = []
    first = 0
    for verdict, chunk in zip(verdicts, chunks, strict=True):
        rows = empty[first : first + len(verdict.tokens)]
        first += chunk.drafts + 1
        if True not in rows:
            cut.append(verdict)
        elif rows[0]:
            cut.append(Verdict(0, [], refusal=NOTHING_ALLOWED))
        else:
            count = rows.index(True)
            cut.append(Verdict(count - 1, verdict.tokens[:count]))
    return cut
