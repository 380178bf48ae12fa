"""A model's linear layers, rounded to one byte a weight while they move to the device.

Knows which layers of a model are rounded and what cannot be; does not know how a rounded layer is
multiplied. Rounding changes the target's distribution a little, once, when it is loaded: behind
that, speculation is as exact for the rounded target as for any other.

Not rounded: embeddings and norms; the language model's head, whose errors reach the logits
directly, behind no norm, and whose weights are often the embedding's own; and routers of mixtures
of experts, small layers whose errors choose other experts.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from verifier_service.engines.quantized_linear import FP8, INT8, QuantizedLinear, Scheme

SCHEMES = {scheme.name: scheme for scheme in (INT8, FP8)}
NAMES = ("none", *SCHEMES)

_ROUTERS = ("gate", "router", "shared_expert_gate")
# From Ada Lovelace and Hopper on (NVIDIA, compute capability 8.9).
_FP8_CAPABILITY = (8, 9)


class QuantizationError(Exception):
    """A model or device that cannot be quantised as asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """What was rounded: `layers` of them, `weights` of the model's `all_weights` weights."""

    layers: int
    weights: int
    all_weights: int

    def __str__(self) -> str:
        share = self.weights / max(self.all_weights, 1)
        return f"{self.layers} linear layers, {share:.0%} of all weights"


def check_quantization(name: str, config: Any, device: torch.device) -> Scheme | None:
    """The scheme called `name`, None for `none`. Raises QuantizationError.

    All that can be known before weights are read.
    """
    if name not in NAMES:
        raise QuantizationError(f"quantization {name!r}: allowed are {', '.join(NAMES)}")
    if name == "none":
        return None
    done = getattr(config, "quantization_config", None)
    if done:
        kind = done.get("quant_method") if isinstance(done, dict) else done.quant_method
        raise QuantizationError(
            f"quantization {name!r}: the checkpoint is already quantised ({kind}); give an "
            "unquantised one, or quantization 'none'"
        )
    if device.type == "cuda":
        _check_cuda(name, device)
    elif device.type != "cpu":
        raise QuantizationError(f"quantization {name!r}: not on device {device}; on cpu and cuda")
    return SCHEMES[name]


def quantize(
    module: nn.Module, scheme: Scheme, device: torch.device, weights: torch.dtype | None = None
) -> Quantized:
    """Replace the linear layers of `module`, one by one, by rounded ones on `device`.

    A layer's own weights are given up before the next is rounded: the device never holds more of
    the unquantised model than one layer. What is not rounded is not moved. `weights` is the dtype
    that the model would be held in otherwise. Raises QuantizationError.
    """
    kept = _kept(module)
    total = sum(parameter.numel() for parameter in module.parameters())
    # Places, not layers: a list of these would hold all weights until the last one is rounded.
    places = [
        (path, parent, name)
        for path, parent in module.named_modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and id(child.weight) not in kept and name not in _ROUTERS
    ]
    count = 0
    for path, parent, name in places:
        try:
            rounded = QuantizedLinear.of(getattr(parent, name), scheme, device, weights)
        except ValueError as error:
            raise QuantizationError(
                f"quantization {scheme.name!r}: layer {path}.{name}: {error}"
            ) from None
        setattr(parent, name, rounded)
        count += rounded.weight.numel()
    if not places:
        raise QuantizationError(
            f"quantization {scheme.name!r}: {type(module).__name__} has no linear layers of a kind "
            "that can be quantised (torch.nn.Linear)"
        )
    return Quantized(len(places), count, total)


def _kept(module: nn.Module) -> set[int]:
    """Identities of the weights that must stay: of embeddings and of the head."""
    kept = {id(child.weight) for child in module.modules() if isinstance(child, nn.Embedding)}
    head: Any = getattr(module, "get_output_embeddings", lambda: None)()
    if head is not None:
        kept.add(id(head.weight))
    return kept


def _check_cuda(name: str, device: torch.device) -> None:
    if importlib.util.find_spec("triton") is None:
        raise QuantizationError(
            f"quantization {name!r}: needs Triton on CUDA, and it is not installed here"
        )
    capability = torch.cuda.get_device_capability(device)
    if name == FP8.name and capability < _FP8_CAPABILITY:
        wanted, found = (".".join(map(str, pair)) for pair in (_FP8_CAPABILITY, capability))
        raise QuantizationError(
            f"quantization 'fp8': {torch.cuda.get_device_name(device)} has compute capability "
            f"{found}, float8 needs {wanted}; 'int8' runs there"
        )
