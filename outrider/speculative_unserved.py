"""Values of the keys that Outrider refuses, so that a wrong one is told from an unserved one.

Knows vLLM's type, default and range of each; why a key is refused is in speculative_keys.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class UnservedKeys(BaseModel):
    """Keys of methods and rejection rules that are not served, with vLLM's defaults.

    The context of a validation may hold `num_speculative_tokens`, which the synthetic keys follow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    moe_backend: Name | None = None
    attention_backend: Name | None = None
    kv_cache_dtype: Name | None = None
    code_revision: Name | None = None
    index_share_for_mtp_iteration: bool | None = None
    disable_padded_drafter_batch: bool = False
    use_local_argmax_reduction: bool = False
    use_heterogeneous_vocab: bool = False
    parallel_drafting: bool = False
    synthetic_acceptance_rates: list[Share] | None = None
    synthetic_acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    dspark_draft_topk: Count | None = None
    disable_eagle_block_drop: bool = False
    disable_lookahead_block_hashes: bool = False
    draft_lm_head_quantization: Literal["fp8", "nvfp4"] | None = None
    xpress_topc: Count | None = None
    fly_window_size: Count | None = None
    fly_entropy_threshold: Amount = 0.3
    fly_entropy_top_k: Count = 3

    @field_validator("synthetic_acceptance_rates")
    @classmethod
    def _check_rates(cls, rates: list[float] | None, info: ValidationInfo) -> list[float] | None:
        if rates is None:
            return None
        tokens = _tokens(info)
        if tokens is not None and len(rates) != tokens:
            raise ValueError(
                f"{len(rates)} rates for num_speculative_tokens {tokens}; one for each is needed"
            )
        if any(later > before for before, later in pairwise(rates)):
            raise ValueError("a rate is above the one before; they must not rise")
        return rates

    @field_validator("synthetic_acceptance_length")
    @classmethod
    def _check_length(cls, length: float | None, info: ValidationInfo) -> float | None:
        tokens = _tokens(info)
        if length is not None and tokens is not None and length > tokens + 1:
            raise ValueError(
                f"input should be at most {tokens + 1}, num_speculative_tokens {tokens} + 1"
            )
        if length is not None and info.data.get("synthetic_acceptance_rates") is not None:
            raise ValueError("synthetic_acceptance_rates is given too; give one of the two")
        return length


def _tokens(info: ValidationInfo) -> int | None:
    tokens = (info.context or {}).get("num_speculative_tokens")
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
