"""Outrider: exact speculative decoding, split into gRPC services.

Offline, without any of them: `from outrider import LLM, SamplingParams` (docs/offline.md). These
names are imported when they are first used; nothing here imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.llm_outputs import CompletionOutput, Logprob, RequestOutput
    from outrider.sampling_params import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]

_HOMES = {
    "LLM": "llm",
    "CompletionOutput": "llm_outputs",
    "Logprob": "llm_outputs",
    "RequestOutput": "llm_outputs",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
