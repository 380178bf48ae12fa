"""Rounding a model: which layers, in how much memory, and what is refused before loading."""

from __future__ import annotations

import importlib.util
import json
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.tiny_model import make_tiny_model
from tests.verifier_service.engines.test_torch_engine import (
    PROMPT,
    any_model,
    decode,
    engine,
    llama,
)
from verifier_service.engines import quantized
from verifier_service.engines.base import Chunk
from verifier_service.engines.loading import ModelLoadError, load
from verifier_service.engines.quantized import (
    NAMES,
    QuantizationError,
    check_quantization,
    quantize,
)
from verifier_service.engines.quantized_linear import FP8, INT8, QuantizedLinear, Scheme
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling

__all__ = ["any_model", "llama"]

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
SCHEMES = pytest.mark.parametrize("scheme", [INT8, FP8], ids=lambda scheme: scheme.name)
PLAIN = SimpleNamespace()


def small(tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def dequantized(folder: Path, scheme: Scheme, target: Path) -> Path:
    """The folder's model with rounded weights written out in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for layer in model.model.layers:
        for module in layer.modules():
            if type(module) is nn.Linear:
                rounded = QuantizedLinear.of(module, scheme, CPU)
                module.weight.data.copy_(rounded.dequantized())
    model.save_pretrained(target)
    return target


@SCHEMES
@pytest.mark.parametrize("tied", [False, True])
def test_decoder_layers_are_rounded_and_nothing_else(scheme: Scheme, tied: bool) -> None:
    module = small(tied)
    embedding = module.model.embed_tokens.weight.clone()
    found = quantize(module, scheme, CPU)
    assert found.layers == 14
    assert found.weights == 2 * (32 * 32 * 2 + 32 * 16 * 2 + 32 * 48 * 3)
    kinds = {type(child).__name__ for child in module.model.layers.modules()}
    assert "Linear" not in kinds
    assert type(module.lm_head) is nn.Linear
    assert torch.equal(module.model.embed_tokens.weight, embedding)
    assert "14 linear layers" in str(found)


def test_routers_keep_their_weights() -> None:
    module = nn.ModuleDict({"gate": nn.Linear(8, 4), "up": nn.Linear(8, 8)})
    assert quantize(module, INT8, CPU).layers == 1
    assert type(module["gate"]) is nn.Linear


def test_a_layer_is_given_up_before_the_next_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment are there more unquantised weights than are still to be rounded."""
    module = small()
    weights = [
        weakref.ref(child.weight)
        for child in module.model.layers.modules()
        if type(child) is nn.Linear
    ]
    alive: list[int] = []
    of = QuantizedLinear.of

    def watched(*arguments: object) -> QuantizedLinear:
        alive.append(sum(weight() is not None for weight in weights))
        return of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(quantized.QuantizedLinear, "of", watched)
    quantize(module, INT8, CPU)
    assert alive == list(range(14, 0, -1))
    assert all(weight() is None for weight in weights)


def test_a_layer_that_cannot_be_rounded_is_named() -> None:
    module = small()
    module.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(QuantizationError, match=r"layer model\.layers\.1\.mlp\.up_proj: a weight"):
        quantize(module, INT8, CPU)


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(QuantizationError, match="Sequential has no linear layers"):
        quantize(nn.Sequential(nn.Embedding(3, 4), nn.ReLU()), INT8, CPU)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_known_on_a_cpu(name: str) -> None:
    scheme = check_quantization(name, PLAIN, CPU)
    assert (scheme.name if scheme else "none") == name


@pytest.mark.parametrize(
    ("name", "config", "device", "message"),
    [
        ("int3", PLAIN, CPU, "quantization 'int3': allowed are none, int8, fp8"),
        ("awq", PLAIN, CPU, "allowed are none, int8, fp8"),
        ("int8", PLAIN, torch.device("mps"), "not on device mps"),
        (
            "fp8",
            SimpleNamespace(quantization_config={"quant_method": "gptq"}),
            CPU,
            r"already quantised \(gptq\)",
        ),
        (
            "int8",
            SimpleNamespace(quantization_config=SimpleNamespace(quant_method="awq")),
            CPU,
            r"already quantised \(awq\)",
        ),
    ],
)
def test_what_cannot_be_is_said(
    name: str, config: object, device: torch.device, message: str
) -> None:
    with pytest.raises(QuantizationError, match=message):
        check_quantization(name, config, device)


def test_fp8_needs_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(QuantizationError, match=r"A100 has compute capability 8\.0.*needs 8\.9"):
        check_quantization("fp8", PLAIN, CUDA)
    assert check_quantization("int8", PLAIN, CUDA) is INT8
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert check_quantization("fp8", PLAIN, CUDA) is FP8


def test_cuda_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(QuantizationError, match="needs Triton"):
        check_quantization("int8", PLAIN, CUDA)


def test_refusals_come_before_weights_are_read(tmp_path: Path) -> None:
    """A folder with a config and no weights: anything else would say that these are missing."""
    config = LlamaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1).to_dict()
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="already quantised"):
        load(str(tmp_path), CPU, "float32", None, "int8")
    with pytest.raises(ModelLoadError, match="allowed are none, int8, fp8"):
        load(str(tmp_path), CPU, "float32", None, "nf4")


@SCHEMES
def test_the_engine_sees_what_the_written_out_weights_say(
    llama: Path, scheme: Scheme, tmp_path: Path
) -> None:
    target = engine(llama, quantization=scheme.name)
    assert target.model.extra["quantization"] == scheme.name
    found = top(target)
    assert found == pytest.approx(top(engine(dequantized(llama, scheme, tmp_path))), abs=1e-4)
    unquantised = top(engine(llama))
    assert max(abs(found[token] - unquantised[token]) for token in found) > 1e-3


def top(target: TorchEngine) -> dict[int, float]:
    """Log-probabilities of all tokens behind the prompt."""
    asking = Sampling(temperature=0.0, logprobs=97)
    (verdict,) = target.run([Chunk(PROMPT, 0, [0], 0, True, asking)])
    assert verdict is not None
    return dict(verdict.logprobs[0].top)


@SCHEMES
@pytest.mark.parametrize("invariant", [False, True])
def test_speculation_equals_plain_decoding_of_the_same_quantised_target(
    llama: Path, scheme: Scheme, invariant: bool
) -> None:
    """Seeded draws, where nearly every logit matters."""
    target = engine(llama, quantization=scheme.name, batch_invariant=invariant)
    plain = draw(target, 40, [])
    wrong = [(token + 1) % 97 for token in plain]
    half = [a if i % 3 else b for i, (a, b) in enumerate(zip(plain, wrong, strict=True))]
    for drafts in (plain, wrong, half):
        assert draw(target, 40, drafts) == plain


def test_the_tiny_served_model_is_quantised_as_any_other(tmp_path: Path) -> None:
    target = engine(make_tiny_model(tmp_path / "tiny"), quantization="int8")
    plain = draw(target, 20, [])
    assert draw(target, 20, [*plain[:7], 0, *plain[8:]]) == plain


def draw(target: TorchEngine, count: int, drafts: list[int]) -> list[int]:
    """A coupled continuation of the prompt, three of `drafts` verified at a time."""
    sampling = Sampling(temperature=1.5, seed=4)
    ids, blocks = list(PROMPT), [0, 1]
    target.run([Chunk(ids[:-1], 0, blocks, 0, False, sampling)])
    while len(ids) < len(PROMPT) + count:
        draft = drafts[len(ids) - len(PROMPT) :][:3]
        chunk = Chunk([ids[-1], *draft], len(ids) - 1, blocks, len(draft), True, sampling)
        (verdict,) = target.run([chunk])
        assert verdict is not None
        ids += verdict.tokens
    return ids[len(PROMPT) :][:count]


def test_models_of_other_families_are_quantised_too(
    any_model: Path, request: pytest.FixtureRequest
) -> None:
    name = json.loads((any_model / "config.json").read_text())["model_type"]
    if name == "gpt2":
        with pytest.raises(ModelLoadError, match="no linear layers"):
            engine(any_model, quantization="int8")
        return
    target = engine(any_model, quantization="int8")
    plain = decode(target, PROMPT, 12, [], [0, 1])
    assert decode(target, PROMPT, 12, plain, [0, 1]) == plain


def test_without_quantization_nothing_changes(llama: Path) -> None:
    assert engine(llama).model.extra["quantization"] == "none"
    loaded = load(str(llama), CPU, "float32", None)
    assert not any(isinstance(child, QuantizedLinear) for child in loaded.module.modules())
