"""Exact verification of drafts: `verify(rule, inputs, noise)`."""

from verifier_service.rejection.inputs import SparseQ, VerifyInputs, VerifyResult, pack_q
from verifier_service.rejection.verify import verify

__all__ = ["SparseQ", "VerifyInputs", "VerifyResult", "pack_q", "verify"]
