"""The CUDA engine's way through a step, on a CPU: captured steps are functions, and the paged
attention kernel is written out by its definition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from verifier_service.engines import attention, forward, torch_engine
from verifier_service.engines.attention import StepLayout, attend_spans
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.settings import VerifierSettings

Function = Callable[[], None]


def attend_by_definition(
    query: Tensor, keys: Tensor, values: Tensor, layout: StepLayout, scale: float, window: int
) -> Tensor:
    """`attend_pages`: rows that belong to no sequence are left as the kernel leaves them, junk."""
    if layout.table is None:
        flat = keys.flatten(0, 1), values.flatten(0, 1)
        return attend_spans(query, *flat, layout.spans, scale, window)
    assert layout.cu_query is not None and layout.used is not None
    size = keys.shape[1]
    group = query.shape[1] // keys.shape[2]
    out = torch.full_like(query, 1e30)
    bounds = layout.cu_query.tolist()
    for row, (first, end) in enumerate(pairwise(bounds)):
        length, used = end - first, int(layout.used[row])
        if length == 0:
            continue
        assert length <= layout.max_query and used <= layout.max_key
        pages = layout.table[row, : -(-used // size)].long()
        k = keys[pages].flatten(0, 1)[:used].repeat_interleave(group, dim=1)
        v = values[pages].flatten(0, 1)[:used].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[first:end], k) * scale
        at = torch.arange(used - length, used)[:, None]
        key = torch.arange(used)
        seen = (key <= at) & ((key > at - window) if window else torch.tensor(True))
        scores = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        out[first:end] = torch.einsum("hqk,khd->qhd", scores, v)
    return out


def run_once(function: Function) -> Function:
    """A capture that repeats the function itself."""
    function()
    return function


def paged_engine(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> TorchEngine:
    """An engine that takes every turn of the CUDA path."""
    monkeypatch.setattr(forward, "attend_pages", attend_by_definition)
    monkeypatch.setattr(attention, "attend_pages", attend_by_definition)
    monkeypatch.setattr(torch_engine, "choose_forward", forward.choose_paged)
    monkeypatch.setattr(torch_engine, "cuda_capture", lambda: run_once)
    monkeypatch.setattr(torch_engine, "_replays", lambda device: True)
    values: dict[str, object] = {
        "model": str(folder),
        "listen": "unix:unused",
        "served_model_name": "tiny",
        "dtype": "float32",
        "num_speculative_tokens": 4,
        "max_num_seqs": 5,
        "compile": False,
        "kv_cache_bytes": 1 << 20,
        "max_captured_prefill_tokens": 64,
    }
    return TorchEngine(VerifierSettings(**{**values, **changes}))  # type: ignore[arg-type]
