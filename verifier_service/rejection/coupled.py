"""The coupled rule, and greedy matching: a draft is accepted iff it is the target's own choice.

The choice of each row is made without looking at any draft, so what comes out depends on the
seed and the target alone. (Daliri, Musco and Suresh, arXiv 2408.07978.)
"""

from __future__ import annotations

from torch import Tensor

from verifier_service.noise import VocabularyNoise
from verifier_service.rejection.chain import emit, leading
from verifier_service.rejection.inputs import VerifyInputs, VerifyResult
from verifier_service.sampling import choose


def verify_coupled(inputs: VerifyInputs, noise: VocabularyNoise) -> VerifyResult:
    """Accept the longest prefix of the draft that equals the target's choices."""
    chosen = choose(inputs.logits, inputs.rows, inputs.flags, noise)
    return match(chosen, inputs)


def match(chosen: Tensor, inputs: VerifyInputs) -> VerifyResult:
    """The result when the target's choices [R] are known."""
    target = chosen[inputs.row_index]
    accepted = leading(inputs.draft_ids == target[:, :-1], inputs.draft_lengths)
    return emit(inputs.draft_ids, accepted, target.gather(1, accepted.unsqueeze(1)).squeeze(1))
