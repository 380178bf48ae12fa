"""A target model from a local folder, ready for packed steps.

Knows transformers' loading and this project's attention; does not know steps.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from verifier_service.engines.attention import IMPLEMENTATION
from verifier_service.engines.quantized import QuantizationError, check_quantization, quantize
from verifier_service.engines.quantized_check import wrong_product

_log = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class ModelLoadError(Exception):
    """The model folder cannot be served; the message says why."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`compute` is the dtype of activations and cache, `weights` that in which weights are held.

    With a `quantization`, `weights` is that of the layers which are not quantised.
    """

    module: nn.Module
    config: Any
    layers: list[tuple[int, int]]
    group: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    compute: torch.dtype
    weights: torch.dtype
    quantization: str = "none"


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises ModelLoadError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelLoadError(
            f"device {name!r}: {error}; allowed: auto, cpu, cuda, cuda:N"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device {name!r}: torch sees no CUDA device here")
    return device


def load(
    folder: str,
    device: torch.device,
    dtype: str,
    max_model_len: int | None,
    quantization: str = "none",
) -> LoadedModel:
    """Load a causal LM from `folder`. Raises ModelLoadError with the reason."""
    if dtype != "auto" and dtype not in _DTYPES:
        raise ModelLoadError(f"dtype {dtype!r}: allowed are auto, {', '.join(_DTYPES)}")
    if not (Path(folder) / "config.json").is_file():
        raise ModelLoadError(f"model folder {folder!r} has no config.json")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"model folder {folder!r}: {error}") from None
    try:
        scheme = check_quantization(quantization, config, device)
    except QuantizationError as error:
        raise ModelLoadError(str(error)) from None
    weights = (
        _DTYPES[dtype] if dtype != "auto" else (getattr(config, "dtype", None) or torch.float32)
    )
    # On a CPU activations and sums are float32: few processors multiply bfloat16 natively.
    compute = torch.float32 if device.type == "cpu" else weights
    transformers_logging.disable_progress_bar()
    try:
        module = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=compute, attn_implementation=IMPLEMENTATION
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelLoadError(f"model folder {folder!r} does not load: {error}") from None
    module = module.eval().requires_grad_(False)
    if scheme is not None:
        try:
            quantized = quantize(module, scheme, device, weights)
        except QuantizationError as error:
            raise ModelLoadError(str(error)) from None
        _log.info("quantised to %s: %s", scheme.name, quantized)
    module = module.to(device)
    if scheme is not None and device.type == "cuda":
        wrong = wrong_product(module, compute)
        if wrong:
            raise ModelLoadError(f"quantization {scheme.name!r}: {wrong}; 'none' serves this model")
    text = config.get_text_config()
    limit = int(getattr(text, "max_position_embeddings", 0) or 2048)
    if max_model_len is not None:
        if max_model_len > limit:
            raise ModelLoadError(f"max_model_len {max_model_len}: the model's own limit is {limit}")
        limit = max_model_len
    heads = int(text.num_attention_heads)
    layers = _layers(text)
    return LoadedModel(
        module=module,
        config=config,
        layers=layers,
        group=max(heads // layers[0][0], 1),
        vocab_size=int(text.vocab_size),
        max_model_len=limit,
        eos_token_ids=_eos(folder, text),
        compute=compute,
        weights=weights,
        quantization=quantization,
    )


def _layers(text: Any) -> list[tuple[int, int]]:
    """(kv heads, head size) of each decoder layer."""
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    size = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    return [(kv_heads, size)] * int(text.num_hidden_layers)


def _eos(folder: str, text: Any) -> tuple[int, ...]:
    """The generation config's end-of-sequence ids, else the model config's."""
    eos = getattr(text, "eos_token_id", None)
    if (Path(folder) / "generation_config.json").is_file():
        found = GenerationConfig.from_pretrained(folder).eos_token_id
        eos = found if found is not None else eos
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)
