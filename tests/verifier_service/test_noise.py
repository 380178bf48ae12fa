"""Tensor noise has numpy's bits, and choices do not depend on where or how they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider import coupling
from outrider.coupling import Stream
from verifier_service.noise import (
    VocabularyNoise,
    exponential,
    hashes,
    row_keys,
    tensor_keys,
    uniform,
    words,
)

# The GPU too, on machines that have one.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SEEDS = torch.tensor([0, 1, -1, 42, 2**63 - 1, -(2**63)])
POSITIONS = torch.tensor([0, 1, 2, 131_072, 7, 5])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stream", list(Stream))
def test_keys_have_the_same_bits(stream: Stream, device: str) -> None:
    expected = coupling.keys(SEEDS.numpy(), POSITIONS.numpy(), stream)
    for made in (tensor_keys, row_keys):
        got = made(SEEDS.to(device), POSITIONS.to(device), stream)
        assert all(
            np.array_equal(g.cpu().numpy().view(np.uint32), e)
            for g, e in zip(got, expected, strict=True)
        )


@pytest.mark.parametrize("device", DEVICES)
def test_words_have_the_same_bits(device: str) -> None:
    numbers = torch.tensor([0, 1, 2, 255, 49_151, 2**31, 2**31 + 12_345, 2**32 - 1])
    low, high = coupling.keys(SEEDS.numpy(), POSITIONS.numpy())
    expected = coupling.words((low[:, None], high[:, None]), coupling.hashes(numbers.numpy()))
    keys = tensor_keys(SEEDS.to(device), POSITIONS.to(device))
    got = words(keys, hashes(numbers.to(device)))
    assert np.array_equal(got.cpu().numpy().view(np.uint32), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [1, 2, 3, 4, 7, 1024, 5001])
def test_noise_bits_have_the_same_bits(vocab: int, device: str) -> None:
    low, high = coupling.keys(SEEDS.numpy(), POSITIONS.numpy())
    expected = coupling.noise_bits((low[:, None], high[:, None]), np.arange(vocab))
    keys = tensor_keys(SEEDS.to(device), POSITIONS.to(device))
    got = VocabularyNoise(vocab, device).bits(keys)
    assert np.array_equal(got.cpu().numpy().view(np.uint32), expected)


def test_a_pruned_vocabulary_sees_the_same_noise() -> None:
    """A drafter with the target's ids 0..99 only, or with any subset, shares their noise."""
    keys = row_keys(SEEDS, POSITIONS)
    whole = VocabularyNoise(1000).bits(keys)
    assert torch.equal(VocabularyNoise(100).bits(keys), whole[:, :100])
    low, high = coupling.keys(SEEDS.numpy(), POSITIONS.numpy())
    subset = coupling.noise_bits((low[:, None], high[:, None]), [3, 500, 999])
    assert np.array_equal(whole[:, [3, 500, 999]].numpy().view(np.uint32), subset)


def test_logarithms_agree_with_numpy() -> None:
    bits = VocabularyNoise(4096).bits(row_keys(SEEDS, POSITIONS))
    expected = coupling.exponential(bits.numpy().view(np.uint32))
    assert exponential(bits).numpy() == pytest.approx(expected, rel=1e-6)


def test_uniforms_are_inside_the_unit_interval() -> None:
    u = uniform(torch.tensor([0, -1, 2**31 - 1, -(2**31)], dtype=torch.int32))
    assert u.tolist() == pytest.approx([2.0**-33, 1 - 2.0**-33, 0.5, 0.5])
    assert ((u > 0) & (u < 1)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [5, 2049])
def test_choices_equal_those_of_all_noise(vocab: int, device: str) -> None:
    """The CPU's short way, and the way of other devices, against the noise itself."""
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randn(600, vocab, generator=generator) * 3).to(device)
    keys = row_keys(torch.arange(600, device=device), torch.arange(600, device=device) * 7)
    expected = (scores - VocabularyNoise(vocab, device).exponential(keys).log()).argmax(dim=1)
    for prune in (True, False):
        noise = VocabularyNoise(vocab, device, prune=prune)
        assert torch.equal(noise.of_scores(scores, keys), expected)
        assert torch.equal(noise.of_weights(scores.softmax(dim=-1), keys), expected)
