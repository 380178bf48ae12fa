"""`--batch-invariant` over pages: its kernels in Triton's interpreter, its engine on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.verifier_service.engines.paged import attend_by_definition, paged_engine
from tests.verifier_service.engines.test_batch_invariant_forward import GREEDY, llama_folder
from verifier_service.engines import (
    attention,
    batch_invariant_forward,
    batch_invariant_pages,
    torch_engine,
)
from verifier_service.engines.attention import StepLayout
from verifier_service.engines.base import Chunk
from verifier_service.engines.batch_invariant_forward import check_device, choose_paged_invariant
from verifier_service.engines.batch_invariant_pages import positions_of, refusal
from verifier_service.engines.loading import ModelLoadError
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling

__all__ = ["llama_folder"]

PROGRAM = Path(__file__).with_name("interpret_batch_invariant.py")
CUDA = torch.device("cuda")


def test_the_kernels_give_the_same_bits_in_any_company() -> None:
    pytest.importorskip("triton")
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'protos'}",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["products", "norms", "attention_by_parts", "forward"]


def attend_here(
    query: Tensor, keys: Tensor, values: Tensor, layout: StepLayout, s: float
) -> Tensor:
    return attend_by_definition(query, keys, values, layout, s, 0)


def invariant_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object
) -> TorchEngine:
    """The engine that a GPU gets, its kernels by their definition: tokens, not bits."""
    monkeypatch.setattr(batch_invariant_pages, "attend_fixed", attend_here)
    monkeypatch.setattr(batch_invariant_forward, "configure_matmul", lambda: None)
    monkeypatch.setattr(torch_engine, "choose_invariant", choose_paged_invariant)
    monkeypatch.setattr(batch_invariant_forward.Trials, "difference", lambda self, forward: "")
    monkeypatch.setattr(attention, "attend_pages", attend_by_definition)
    monkeypatch.setattr(torch_engine, "_BLOCK_SIZE", {"cpu": 64})
    return paged_engine(folder, monkeypatch, batch_invariant=True, **changes)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, seed=77)])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_engine_decodes_as_the_one_without_the_option(
    llama_folder: Path, sampling: Sampling, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for make in (paged_engine, invariant_engine):
        target = make(llama_folder, monkeypatch, quantization=quantization)
        ids = [5, 17, 23, 41]
        target.run([Chunk(ids[:-1], 0, [0], 0, False, sampling)])
        for drafts in ([], [1, 2], []):
            at = len(ids) - 1
            chunk = Chunk([ids[-1], *drafts], at, [0], len(drafts), True, sampling)
            (verdict,) = target.run([chunk])
            assert verdict is not None
            ids += verdict.tokens
        texts.append((ids, target.model.extra["forward"]))
    assert texts[0][0] == texts[1][0]
    assert "batch-invariant" not in texts[0][1] and "batch-invariant" in texts[1][1]


def test_bits_that_vary_are_refused(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    difference = "beside another sequence"
    with monkeypatch.context() as patched:
        invariant_engine(llama_folder, patched)
        patched.setattr(batch_invariant_forward.Trials, "difference", lambda s, f: difference)
        patched.setattr(torch_engine, "choose_invariant", choose_paged_invariant)
        with pytest.raises(ModelLoadError, match="sums differ beside another sequence"):
            paged_engine(llama_folder, patched, batch_invariant=True)


def test_another_function_is_refused(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_a_number(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return x * torch.nan

    monkeypatch.setattr(batch_invariant_forward, "fixed_rms", not_a_number)
    with pytest.raises(ModelLoadError, match="fused decoder's logits differ"):
        invariant_engine(llama_folder, monkeypatch)


def test_cuda_is_offered_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    check_device(CUDA)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="batch_invariant: needs Triton on CUDA"):
        check_device(CUDA)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 16, 33, 64])
def test_positions_of_a_tile_fit_and_divide_a_block_of_keys(group: int) -> None:
    positions = positions_of(group)
    assert positions * group <= 64 < 2 * positions * group
    assert 64 % positions == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((32, 8, 128, 256), ""),
        ((9, 3, 64, 64), ""),
        ((32, 8, 80, 256), "heads of size 80"),
        ((130, 2, 64, 256), "65 query heads"),
        ((8, 8, 64, 96), "cache blocks of 96 tokens"),
    ],
)
def test_what_the_kernel_cannot_serve(shape: tuple[int, int, int, int], message: str) -> None:
    assert refusal(*shape).startswith(message) and bool(refusal(*shape)) is bool(message)
