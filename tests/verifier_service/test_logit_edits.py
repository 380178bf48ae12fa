"""Edits of logits: their order, what they leave alone, and that nothing is read back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from verifier_service.logit_edits import Allowed, Bias, LogitEdits, Masks, Penalties

INF = math.inf


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def penalties(at: Tensor, factor: float = 1.0, frequency: float = 0.0) -> Penalties:
    n = len(at)
    return Penalties(at, floats(*[factor] * n), floats(*[frequency] * n), floats(*[0.0] * n))


def test_bits_of_a_mask_are_tokens_of_the_vocabulary() -> None:
    bits = torch.tensor([[0b101, 1], [-(2**31), 0]], dtype=torch.int32)
    edited, empty = LogitEdits(masks=Masks(ints(2, 0), bits)).apply(torch.ones(3, 34))
    allowed = [row.nonzero().flatten().tolist() for row in torch.isfinite(edited)]
    assert allowed == [[31], list(range(34)), [0, 2, 32]]
    assert empty is not None and not empty.any()


def test_only_allowed_ids_stay() -> None:
    logits = torch.arange(8.0).view(2, 4)
    edited, _ = LogitEdits(allowed=Allowed(ints(1), ints(5, 7))).apply(logits)
    assert edited.tolist() == [[0, 1, 2, 3], [-INF, 5, -INF, 7]]


def test_bias_comes_before_penalties() -> None:
    """-1 + 3 = 2 is positive and divided; the other way round, -1 would be multiplied."""
    edits = LogitEdits(bias=Bias(ints(0), floats(3.0)), penalties=penalties(ints(0), 2.0, 0.25))
    edited, empty = edits.apply(torch.tensor([[-1.0, 5.0]]))
    assert edited.tolist() == [[0.75, 5.0]]
    assert empty is None


def test_what_is_forbidden_stays_so_whatever_is_added() -> None:
    at = ints(0, 1)
    edits = LogitEdits(
        forbidden=ints(0, 0),
        bias=Bias(at, floats(100.0, 100.0)),
        penalties=penalties(at, 0.5, -2.0),
    )
    edited, _ = edits.apply(torch.tensor([[1.0, 1.0]]))
    assert edited[0, 0] == -INF
    assert edited[0, 1] == 204.0


@pytest.mark.parametrize("factor", [1e-38, 3e38])
def test_no_penalty_makes_an_infinity(factor: float) -> None:
    logits = torch.tensor([[50.0, -50.0, 0.0]])
    edited, _ = LogitEdits(penalties=penalties(ints(0, 1, 2), factor)).apply(logits)
    assert torch.isfinite(edited).all()
    assert torch.isfinite(edited.softmax(dim=-1)).all()


def test_a_row_with_nothing_left_is_told_and_harmless() -> None:
    edits = LogitEdits(forbidden=ints(3, 4, 5))
    edited, empty = edits.apply(torch.ones(3, 3))
    assert empty is not None
    assert empty.tolist() == [False, True, False]
    assert torch.isfinite(edited).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_targets_own_logits_stay_as_they_are(dtype: torch.dtype) -> None:
    logits = torch.ones(2, 4, dtype=dtype)
    edits = LogitEdits(
        masks=Masks(ints(0), torch.ones(1, 1, dtype=torch.int32)),
        bias=Bias(ints(0), floats(1.0)),
    )
    edited, _ = edits.apply(logits)
    assert (logits == 1).all()
    assert edited.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    # A view into a wider matrix is edited at the right places too.
    wide = torch.ones(2, 6, dtype=dtype)[:, :4]
    assert torch.equal(edits.apply(wide)[0], edited)


def test_nothing_is_read_back_to_the_host() -> None:
    """On tensors without values, any host read or shape that depends on values raises."""

    def there(tensor: Tensor) -> Tensor:
        return tensor.to("meta")

    at = there(ints(1, 2))
    numbers = there(floats(1.0, 1.0))
    edits = LogitEdits(
        masks=Masks(there(ints(0)), there(torch.ones(1, 1, dtype=torch.int32))),
        allowed=Allowed(there(ints(1)), at),
        forbidden=at,
        bias=Bias(at, numbers),
        penalties=Penalties(at, numbers, numbers, numbers),
    )
    edited, empty = edits.apply(torch.empty(3, 8, device="meta"))
    assert edited.shape == (3, 8)
    assert empty is not None and empty.shape == (3,)
