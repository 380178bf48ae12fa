"""The engine's processed logits of every row of mixed batches equal the definition's, bit by bit.

Sequences grow over several rounds, so that counts kept from round to round are checked too; drafts
that are not accepted must leave no trace in them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from tests.exactness.reference import processed
from verifier_service.engines.base import Chunk
from verifier_service.engines.editing import LogitEditor
from verifier_service.messages import Sampling
from verifier_service.sampling import SamplingFlags, pack_rows, process_logits

V = 70

ONE_EACH = {
    "presence": Sampling(presence_penalty=1.3),
    "frequency": Sampling(frequency_penalty=0.7),
    "negative frequency": Sampling(frequency_penalty=-1.1),
    "repetition": Sampling(repetition_penalty=1.7),
    "repetition below 1": Sampling(repetition_penalty=0.6),
    "bias": Sampling(logit_bias=((3, 4.5), (4, -100.0), (69, 100.0))),
    "bad words": Sampling(bad_words=((5,), (1, 2), (2, 2, 3), (1, 1, 1, 1))),
    "allowed": Sampling(allowed_token_ids=(0, 1, 2, 3, 31, 32, 63, 64, 69)),
    "min_tokens": Sampling(min_tokens=6, stop_token_ids=frozenset({1, 2, 64})),
    "min_p": Sampling(min_p=0.08),
    "min_p, k, p": Sampling(temperature=1.4, min_p=0.01, top_k=20, top_p=0.9),
    "all": Sampling(
        temperature=0.8,
        top_k=30,
        top_p=0.95,
        min_p=0.02,
        presence_penalty=-0.3,
        frequency_penalty=0.9,
        repetition_penalty=1.2,
        logit_bias=((0, 2.0), (7, -3.0)),
        bad_words=((4,), (1, 2), (0, 1, 2)),
        allowed_token_ids=(*range(0, 70, 2), 1, 3),
        min_tokens=4,
        stop_token_ids=frozenset({2, 6}),
    ),
    "nothing": Sampling(temperature=0.7),
}


@dataclass
class Text:
    """One growing sequence; few distinct ids, so that words and counts repeat."""

    sampling: Sampling
    prompt: list[int]
    masked: bool
    ids: list[int] = field(default_factory=list)

    def chunk(self, rng: random.Random, generator: np.random.Generator) -> Chunk:
        drafts = [rng.randrange(4) for _ in range(rng.randrange(6))]
        mask = None
        if self.masked:
            bits = generator.integers(-(2**31), 2**31, size=(len(drafts) + 1, 3))
            mask = bits.astype(np.int32) | np.int32(15)
        return Chunk(
            ids=[self.ids[-1], *drafts],
            start=len(self.ids) - 1,
            blocks=[],
            drafts=len(drafts),
            samples=True,
            sampling=self.sampling,
            sequence_ids=self.ids,
            prompt_length=len(self.prompt),
            mask=mask,
        )


def texts(samplings: list[Sampling], rng: random.Random) -> list[Text]:
    made = []
    for i, sampling in enumerate(samplings):
        prompt = [rng.randrange(6) for _ in range(rng.randrange(1, 9))]
        made.append(Text(sampling, prompt, masked=i % 3 == 0, ids=list(prompt)))
    return made


def check_rounds(samplings: list[Sampling], seed: int, rounds: int = 6) -> None:
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    editor = LogitEditor(V)
    batch = texts(samplings, rng)
    for _ in range(rounds):
        # Some are not in every step, as after a preemption.
        part = [text for text in batch if rng.random() < 0.8] or batch
        chunks = [text.chunk(rng, generator) for text in part]
        count = sum(chunk.drafts + 1 for chunk in chunks)
        logits = torch.from_numpy(generator.normal(size=(count, V)).astype(np.float32) * 3)
        edits = editor.plan(chunks)
        edited = logits if edits is None else edits.apply(logits)[0]
        rows = pack_rows([(c.sampling, c.start + 1, c.drafts + 1) for c in chunks])
        got = process_logits(edited, rows, SamplingFlags.of([c.sampling for c in chunks])).numpy()
        at = 0
        for text, chunk in zip(part, chunks, strict=True):
            output = text.ids[len(text.prompt) :]
            for row in range(chunk.drafts + 1):
                mask = None if chunk.mask is None else chunk.mask[row]
                said = output + chunk.ids[1 : 1 + row]
                want = processed(logits[at].numpy(), text.sampling, text.prompt, said, mask)
                assert np.array_equal(got[at], want), (text.sampling, row)
                at += 1
            accepted = chunk.ids[1 : 1 + rng.randrange(chunk.drafts + 1)]
            text.ids.extend([*accepted, rng.randrange(4)])


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize("greedy", [False, True], ids=["random", "greedy"])
def test_each_parameter_on_every_row(name: str, greedy: bool) -> None:
    sampling = ONE_EACH[name]
    check_rounds([replace(sampling, temperature=0.0) if greedy else sampling] * 4, seed=len(name))


@pytest.mark.parametrize("seed", range(12))
def test_batches_that_mix_everything(seed: int) -> None:
    rng = random.Random(1000 + seed)
    every = list(ONE_EACH.values())
    samplings = [
        replace(sampling, temperature=rng.choice([0.0, 0.5, 1.0, 1.5])) for sampling in every
    ]
    rng.shuffle(samplings)
    check_rounds(samplings, seed)


def test_the_comparison_sees_a_draft_that_is_not_counted() -> None:
    """A check of the check: rows that ignore the drafts before them are told apart."""
    sampling = Sampling(frequency_penalty=2.0)
    logits = np.zeros(V, dtype=np.float32)
    with_draft = processed(logits, sampling, [1], [2, 2])
    without = processed(logits, sampling, [1], [2])
    assert not np.array_equal(with_draft, without)
