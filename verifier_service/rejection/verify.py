"""One entrance to the three rules."""

from __future__ import annotations

from verifier_service.messages import RejectionRule
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection.block import verify_block
from verifier_service.rejection.coupled import verify_coupled
from verifier_service.rejection.inputs import VerifyInputs, VerifyResult
from verifier_service.rejection.standard import verify_standard

_RULES = {
    RejectionRule.COUPLED: verify_coupled,
    RejectionRule.STANDARD: verify_standard,
    RejectionRule.BLOCK: verify_block,
}


def verify(rule: RejectionRule, inputs: VerifyInputs, noise: VocabularyNoise) -> VerifyResult:
    """Verify every sequence's draft; plain decoding is the same call with K = 0.

    Shapes follow from the inputs' alone and nothing is read back to the host (on CUDA).
    """
    return _RULES[rule](inputs, noise)
