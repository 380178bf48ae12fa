"""The Llama family's forward on a CPU, with no more operator calls than it needs.

Knows the decoder of Llama, Mistral, Qwen2 and Qwen3 and the paged cache; does not know steps'
tokens or sampling. For one token of a small model most of a step through transformers' modules is
the host calling some sixty small operators a layer; here products that share an input are one,
and the rest is done in place. Weights are those of the loaded module. `build` compares it with
the module before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines.attention import PagedCache, StepLayout, attend_spans, write_cache
from verifier_service.engines.linear import Packer, Product, fuse

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer; `head_norms` are Qwen3's, of queries and keys."""

    input_norm: Tensor
    qkv: Product
    head_norms: tuple[Tensor, Tensor] | None
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[T, heads, size] turned by angles of cosines [T, 1, size] and sines [T, 1, size / 2]."""
    half = x.shape[2] // 2
    turned = x * cos
    turned[:, :, :half].addcmul_(x[:, :, half:], sin, value=-1)
    turned[:, :, half:].addcmul_(x[:, :, :half], sin)
    return turned


def gated(gate_up: Tensor) -> Tensor:
    """The feed-forward's inner activation [T, inner] of gate and up side by side."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True)
class Pieces:
    """How is computed what lies between a layer's products; `attend` is as `attend_spans`."""

    attend: Callable[..., Tensor] = attend_spans
    turn: Callable[[Tensor, Tensor, Tensor], Tensor] = turn
    gated: Callable[[Tensor], Tensor] = gated


FASTEST = Pieces()


class LeanDecoder:
    """Packed tokens in, logits of the rows that choose out; float32."""

    def __init__(
        self, module: nn.Module, config: Any, pack: Packer, pieces: Pieces = FASTEST
    ) -> None:
        self._pieces = pieces
        base: Any = module.model
        self._embedding: Tensor = base.embed_tokens.weight
        self._rotary = base.rotary_emb
        self._epsilon = float(config.rms_norm_eps)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._size = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._scale = float(base.layers[0].self_attn.scaling)
        self._norm: Tensor = base.norm.weight
        self._layers = [self._layer(layer, pack) for layer in base.layers]
        head: Any = module.lm_head
        self._head = pack(head)

    def __call__(
        self, ids: Tensor, positions: Tensor, rows: Tensor, cache: PagedCache, layout: StepLayout
    ) -> Tensor:
        """Logits [R, V] of packed `ids` [T] at `positions` [T]; `rows` [R] index into T."""
        x = F.embedding(ids, self._embedding)
        cos, sin = self._rotary(x.unsqueeze(0), positions.unsqueeze(0))
        half = self._size // 2
        cos = cos[0].unsqueeze(1)
        sin = sin[0, :, :half].unsqueeze(1)
        tokens = ids.shape[0]
        epsilon = self._epsilon
        pieces = self._pieces
        rotated = self._heads + self._kv_heads
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(_rms(x, layer.input_norm, epsilon))
            qkv = qkv.view(tokens, rotated + self._kv_heads, self._size)
            qk = qkv[:, :rotated]
            if layer.head_norms is not None:
                qk = self._normed(qk, layer.head_norms)
            turned = pieces.turn(qk, cos, sin)
            keys, values = write_cache(
                cache, layout, index, turned[:, self._heads :], qkv[:, rotated:]
            )
            mixed = pieces.attend(
                turned[:, : self._heads], keys, values, layout.spans, self._scale, 0
            )
            x = layer.output(mixed.reshape(tokens, -1)).add_(x)
            gate_up = layer.gate_up(_rms(x, layer.mlp_norm, epsilon))
            x = layer.down(pieces.gated(gate_up)).add_(x)
        return self._head(_rms(x[rows], self._norm, epsilon))

    def _layer(self, layer: Any, pack: Packer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            norms = (attention.q_norm.weight, attention.k_norm.weight)
        return _Layer(
            input_norm=layer.input_layernorm.weight,
            qkv=pack(fuse(attention.q_proj, attention.k_proj, attention.v_proj)),
            head_norms=norms,
            output=pack(attention.o_proj),
            mlp_norm=layer.post_attention_layernorm.weight,
            gate_up=pack(fuse(mlp.gate_proj, mlp.up_proj)),
            down=pack(mlp.down_proj),
        )

    def _normed(self, qk: Tensor, norms: tuple[Tensor, Tensor]) -> Tensor:
        queries, keys = qk[:, : self._heads], qk[:, self._heads :]
        return torch.cat(
            (_rms(queries, norms[0], self._epsilon), _rms(keys, norms[1], self._epsilon)), dim=1
        )


def _rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm over the last dimension; torch's own takes twice the operators."""
    inverse = x.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return (x * inverse).mul_(weight)


def supports(module: nn.Module, config: Any) -> str:
    """Why a model cannot take this path, in words; empty where it can."""
    if config.model_type not in _FAMILIES:
        return f"model type {config.model_type}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act}"
    base: Any = module.model
    # Mistral's layers have no window of their own, they look it up in the config.
    window = getattr(config, "sliding_window", None)
    if any(getattr(layer.self_attn, "sliding_window", window) for layer in base.layers):
        return "sliding-window attention"
    return ""
