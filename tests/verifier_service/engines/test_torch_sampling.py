"""Sampling parameters on the torch engine: a real forward, and drafts good and bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.verifier_service.engines.test_torch_engine import engine, llama  # noqa: F401
from verifier_service.engines.base import Chunk
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling

V = 97
PROMPT = [5, 9, 60, 33, 9, 60, 12]
EVERYTHING = Sampling(
    temperature=0.9,
    seed=3,
    min_p=0.02,
    top_k=40,
    presence_penalty=0.5,
    frequency_penalty=0.4,
    repetition_penalty=1.3,
    logit_bias=((9, 2.0), (60, -3.0)),
    bad_words=((5,), (9, 60)),
    allowed_token_ids=tuple(range(80)),
    min_tokens=10,
    stop_token_ids=frozenset({2, 7}),
)


def even_after_odd(output: Sequence[int]) -> np.ndarray:
    """A mask: an even id behind an odd one, anything behind an even one."""
    odd = output and output[-1] % 2
    word = np.int32(0x55555555 if odd else -1)
    return np.full(-(-V // 32), word, dtype=np.int32)


def decode(
    target: TorchEngine, sampling: Sampling, guesses: list[int], count: int, block: int
) -> list[int]:
    """Output of the prompt, verifying up to three of the guesses for the next places at a time."""
    ids = list(PROMPT)
    while len(ids) - len(PROMPT) < count:
        said = ids[len(PROMPT) :]
        drafts = guesses[len(said) : len(said) + 3] if said else []
        masks = [even_after_odd([*said, *drafts[:row]]) for row in range(len(drafts) + 1)]
        first = not said
        chunk = Chunk(
            ids=list(ids) if first else [ids[-1], *drafts],
            start=0 if first else len(ids) - 1,
            blocks=[block, block + 1],
            drafts=len(drafts),
            samples=True,
            sampling=sampling,
            sequence_ids=ids,
            prompt_length=len(PROMPT),
            mask=np.stack(masks),
        )
        (verdict,) = target.run([chunk])
        assert verdict is not None
        ids.extend(verdict.tokens)
    return ids[len(PROMPT) :][:count]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_change_no_token(llama, temperature: float) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    target = engine(llama)
    sampling = replace(EVERYTHING, temperature=temperature)
    plain = decode(target, sampling, [], 24, 0)
    wrong = [(token + 1) % V for token in plain]
    half = [a if i % 3 else b for i, (a, b) in enumerate(zip(plain, wrong, strict=True))]
    for guesses in (plain, wrong, half):
        assert decode(target, sampling, guesses, 24, 2) == plain
    assert 5 not in plain and max(plain) < 80
    assert not set(plain[:10]) & {2, 7}
    for before, after in pairwise(plain):
        assert (before, after) != (9, 60)
        assert not (before % 2 and after % 2)
    assert plain != decode(target, Sampling(temperature=temperature, seed=3), [], 24, 0)
