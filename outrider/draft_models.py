"""What runs a draft model beside its speculative config: where, in what, and how long a step waits.

Knows options only; which folder the model is in is draft_model_folders.py's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.config import SpeculativeConfig
from outrider.errors import InputError

if TYPE_CHECKING:
    from proposer_service.draft_model_settings import DraftModelSettings

METHOD = "draft_model"
DEVICES = r"auto|cpu|cuda(:\d+)?"
DTYPES = ("auto", "float32", "bfloat16")
# For the keys and values of a draft model beside a target, which takes what is left of the memory.
SHARED_CACHE_BYTES = 2 << 30
# How long a step may wait for drafts: a model-free method answers in a few milliseconds, a draft
# model runs once for each draft. Only what is late costs more than it takes.
DEADLINE_MS, DRAFT_MODEL_DEADLINE_MS = 10.0, 1000.0


def deadline_ms(configs: Sequence[SpeculativeConfig]) -> float:
    """The draft deadline where nobody says how long it is."""
    drafting = any(config.method == METHOD for config in configs)
    return DRAFT_MODEL_DEADLINE_MS if drafting else DEADLINE_MS


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a draft model runs and in what; no part of a speculative config.

    `kv_cache_memory_bytes` None takes what is free. Raises InputError naming the option.
    """

    device: str = "auto"
    dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(DEVICES, self.device):
            raise InputError(f"--device: {self.device!r} is not one of auto, cpu, cuda, cuda:N")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")


def draft_model_settings(
    config: SpeculativeConfig, placement: Placement | None = None
) -> DraftModelSettings | None:
    """What a proposer of `config` loads; None where its method loads no model."""
    from proposer_service.draft_model_settings import DraftModelSettings

    if config.model is None:
        return None
    placement = placement or Placement()
    return DraftModelSettings(
        model=config.model,
        device=placement.device,
        dtype=placement.dtype,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        revision=config.revision,
        enforce_eager=config.enforce_eager,
        draft_sample_method=config.draft_sample_method,
        kv_cache_memory_bytes=placement.kv_cache_memory_bytes,
    )
