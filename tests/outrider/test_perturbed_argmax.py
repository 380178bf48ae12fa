"""The short way to the perturbed argmax equals the long one."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.coupling import exponential, keys, noise_bits
from outrider.perturbed_argmax import PerturbedArgmax, Scores


def in_full(scores: Scores, seed: int) -> list[int]:
    """Choices by computing all noise."""
    low, high = keys(np.arange(scores.shape[0]) + seed, 3)
    noise = np.log(
        exponential(noise_bits((low[:, None], high[:, None]), np.arange(scores.shape[1])))
    )
    return [int(i) for i in (scores - noise).argmax(axis=1)]


@pytest.mark.parametrize("vocab", [1, 3, 4, 5, 1000, 4099])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 100.0])
def test_same_choice_as_all_noise(vocab: int, scale: float) -> None:
    scores = (np.random.default_rng(vocab).normal(size=(300, vocab)) * scale).astype(np.float32)
    chosen = PerturbedArgmax(vocab).of_scores(scores, keys(np.arange(300) + 9, 3))
    assert chosen.tolist() == in_full(scores, 9)


def test_weights_choose_as_their_logarithms() -> None:
    scores = np.random.default_rng(2).normal(size=(500, 2000)) * 4
    key = keys(np.arange(500), 3)
    by_weight = PerturbedArgmax(2000).of_weights(np.exp(scores), key)
    assert by_weight.tolist() == PerturbedArgmax(2000).of_scores(scores, key).tolist()


def test_more_rows_than_fit_at_once() -> None:
    """Rows are worked on in parts; a part's place must not change a choice."""
    scores = np.random.default_rng(3).normal(size=(7, 100_000)).astype(np.float32)
    key = keys(np.arange(7), 3)
    chooser = PerturbedArgmax(100_000)
    together = chooser.of_scores(scores, key).tolist()
    single = [
        int(chooser.of_scores(scores[i : i + 1], (key[0][i : i + 1], key[1][i : i + 1]))[0])
        for i in range(7)
    ]
    assert together == single


def test_masked_tokens_are_never_chosen() -> None:
    scores = np.full((2000, 64), -np.inf, dtype=np.float32)
    scores[:, [5, 40]] = (0.0, -1.0)
    chosen = PerturbedArgmax(64).of_scores(scores, keys(np.arange(2000), 0))
    assert set(chosen.tolist()) == {5, 40}
    weights = np.zeros((2000, 64), dtype=np.float32)
    weights[:, 63] = 1e-38
    chosen = PerturbedArgmax(64).of_weights(weights, keys(np.arange(2000), 0))
    assert set(chosen.tolist()) == {63}


def test_no_rows() -> None:
    assert PerturbedArgmax(8).of_scores(np.empty((0, 8)), keys([], [])).tolist() == []


def test_a_broken_models_nan_breaks_nothing() -> None:
    scores = np.zeros((3, 8), dtype=np.float32)
    scores[1, 6] = np.nan
    chosen = PerturbedArgmax(8).of_scores(scores, keys(np.arange(3), 3))
    assert chosen[1] == 6
    assert chosen[[0, 2]].tolist() == [in_full(scores[[i]], i)[0] for i in (0, 2)]


def test_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size 0"):
        PerturbedArgmax(0)
