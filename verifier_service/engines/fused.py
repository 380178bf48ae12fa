"""The Llama family's forward with few and large products, in regions that a compiler can fuse.

Knows the decoder of Llama, Mistral, Qwen2 and Qwen3 and where keys and values are written; does not
know steps' tokens, sampling or graphs. Between two attentions lies one region: output product,
norm, feed-forward, norm, query-key-value product, rotation, write to the cache. Compiled once, it
serves all layers. Weights are those of the loaded module, those that share an input made one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verifier_service.engines.lean import supports as lean_supports
from verifier_service.engines.quantized_linear import QuantizedLinear
from verifier_service.engines.seams import LAYERS, seam

# Queries [T, heads, size] and a layer's number -> [T, heads, size].
Attend = Callable[[Tensor, int], Tensor]
# (keys, values) of a layer by cache slot: [slots, kv heads, size].
Flat = tuple[Tensor, Tensor]
_Rotation = tuple[Tensor, Tensor]

# A norm over the last dimension: input, weight [width], epsilon.
Norm = Callable[[Tensor, Tensor, float], Tensor]

# Of these the angles of a position do not depend on how long the sequence is.
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")


def rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm over the last dimension, in float32, rounded as transformers does."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    return wide.to(x.dtype) * weight


@dataclass(frozen=True, slots=True)
class Pieces:
    """How is computed what sums over a row; `linear` gives what stands for a linear layer.

    `gated` gives what computes silu(gate) * up, of the layer that gives gates and behind them ups;
    without it, that layer's own stand-in does, and the rest is left to the compiler.
    """

    norm: Norm = rms
    linear: Callable[[nn.Module], nn.Module] = lambda layer: layer
    gated: Callable[[nn.Module], nn.Module] | None = None


FASTEST = Pieces()


class Gated(nn.Module):
    """silu(gate) * up, of a layer that gives gates and behind them ups."""

    def __init__(self, joined: nn.Module) -> None:
        super().__init__()
        self.joined = joined

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.joined(x).chunk(2, dim=-1)
        y: Tensor = F.silu(gate) * up
        return y


class Block(nn.Module):
    """One decoder layer's weights and shape."""

    def __init__(
        self,
        layer: Any,
        heads: int,
        kv_heads: int,
        size: int,
        epsilon: float,
        pieces: Pieces = FASTEST,
    ) -> None:
        super().__init__()
        self.norm = pieces.norm
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads, self.size, self.epsilon = heads, kv_heads, size, epsilon
        self.input_norm = layer.input_layernorm.weight
        self.qkv = pieces.linear(join(attention.q_proj, attention.k_proj, attention.v_proj))
        self.query_norm = getattr(getattr(attention, "q_norm", None), "weight", None)
        self.key_norm = getattr(getattr(attention, "k_norm", None), "weight", None)
        self.output = pieces.linear(attention.o_proj)
        self.mlp_norm = layer.post_attention_layernorm.weight
        gate_up = join(mlp.gate_proj, mlp.up_proj)
        self.gated = pieces.gated(gate_up) if pieces.gated else Gated(pieces.linear(gate_up))
        self.down = pieces.linear(mlp.down_proj)


class FusedDecoder:
    """Packed tokens in, logits out, in the dtype of the weights.

    `positions` up to `max_positions` - 1 are rotated from a table. With `compiled`, regions go
    through torch.compile, for any number of tokens from 2 on.
    """

    def __init__(
        self,
        module: nn.Module,
        config: Any,
        max_positions: int,
        *,
        compiled: bool,
        pieces: Pieces = FASTEST,
    ) -> None:
        base: Any = module.model
        epsilon = float(config.rms_norm_eps)
        heads = int(config.num_attention_heads)
        kv_heads = int(config.num_key_value_heads)
        size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self.scale = float(base.layers[0].self_attn.scaling)
        self._embedding: Tensor = base.embed_tokens.weight
        self._blocks: list[Block] = []
        for layer in base.layers:
            block = Block(layer, heads, kv_heads, size, epsilon, pieces)
            self._blocks.append(block.eval().requires_grad_(False))
        self._norm: Tensor = base.norm.weight
        head: Any = module.lm_head
        self._head = pieces.linear(head)
        self._epsilon = epsilon
        self._rotation = _rotation_table(base.rotary_emb, self._embedding, max_positions, size)
        self._before, self._between, self._after = before, between, after
        if compiled:
            self._before = torch.compile(before, dynamic=True)
            self._between = torch.compile(between, dynamic=True)
            self._after = torch.compile(after, dynamic=True)

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        caches: list[Flat],
        attend: Attend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Logits [R, V] of packed `ids` [T] at `positions` [T], keys and values put at `slots` [T].

        `rows` [R] index into T; None for all.
        """
        rotation = self._rotation[0][positions], self._rotation[1][positions]
        x = F.embedding(ids, self._embedding)
        query = self._before(self._blocks[0], x, rotation, slots, caches[0])
        last = len(self._blocks) - 1
        for layer in range(last):
            x, query = self._between(
                self._blocks[layer],
                self._blocks[layer + 1],
                attend(query, layer),
                x,
                rotation,
                slots,
                caches[layer + 1],
            )
            if layer + 1 in LAYERS:
                seam()
        x = self._after(self._blocks[last], attend(query, last), x, self._norm)
        logits: Tensor = self._head(x if rows is None else x[rows])
        return logits


def before(block: Block, x: Tensor, rotation: _Rotation, slots: Tensor, cache: Flat) -> Tensor:
    """From a layer's input [T, hidden] to its queries; keys and values go to the cache."""
    tokens = x.shape[0]
    heads, kv_heads = block.heads, block.kv_heads
    qkv = block.qkv(block.norm(x, block.input_norm, block.epsilon))
    query, key, value = qkv.view(tokens, heads + 2 * kv_heads, block.size).split(
        (heads, kv_heads, kv_heads), dim=1
    )
    if block.query_norm is not None and block.key_norm is not None:
        query = block.norm(query, block.query_norm, block.epsilon)
        key = block.norm(key, block.key_norm, block.epsilon)
    keys, values = cache
    keys.index_put_((slots,), _rotate(key, rotation))
    values.index_put_((slots,), value)
    return _rotate(query, rotation)


def after(block: Block, mixed: Tensor, x: Tensor, norm: Tensor) -> Tensor:
    """From attention's output [T, heads, size] to the layer's, normed for what follows."""
    return block.norm(_feed(block, mixed, x), norm, block.epsilon)


def between(
    block: Block,
    following: Block,
    mixed: Tensor,
    x: Tensor,
    rotation: _Rotation,
    slots: Tensor,
    cache: Flat,
) -> tuple[Tensor, Tensor]:
    """From attention's output in one layer to the queries of the next, and its input."""
    x = _feed(block, mixed, x)
    return x, before(following, x, rotation, slots, cache)


def join(*layers: Any) -> nn.Module:
    """One layer whose output is that of all, one behind the other."""
    if all(isinstance(layer, QuantizedLinear) for layer in layers):
        return QuantizedLinear.joined(layers)
    if not all(type(layer) is nn.Linear for layer in layers):
        return _Side(*layers)
    joined = nn.Linear(1, 1, bias=False)
    joined.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), False)
    biases = [layer.bias for layer in layers]
    if any(bias is not None for bias in biases):
        parts = [
            bias if bias is not None else layer.weight.new_zeros(layer.weight.shape[0])
            for bias, layer in zip(biases, layers, strict=True)
        ]
        joined.bias = nn.Parameter(torch.cat(parts), False)
    joined.out_features, joined.in_features = joined.weight.shape
    begin = 0
    for layer in layers:
        # What was joined is a view of it from now on: one copy in memory, and both can be run.
        end = begin + layer.weight.shape[0]
        layer.weight = nn.Parameter(joined.weight[begin:end], False)
        begin = end
    return joined


class _Side(nn.Module):
    """Layers of another kind than nn.Linear, side by side."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], dim=-1)


def supports(module: nn.Module, config: Any) -> str:
    """Why a model cannot take this path, in words; empty where it can."""
    refusal = lean_supports(module, config)
    if refusal:
        return refusal
    base: Any = module.model
    kind = getattr(base.rotary_emb, "rope_type", "default")
    return "" if kind in _FIXED_ROTATIONS else f"rotation of type {kind}"


def _feed(block: Block, mixed: Tensor, x: Tensor) -> Tensor:
    x = x + block.output(mixed.flatten(1))
    inner = block.gated(block.norm(x, block.mlp_norm, block.epsilon))
    result: Tensor = x + block.down(inner)
    return result


def _rotate(x: Tensor, rotation: _Rotation) -> Tensor:
    """[T, heads, size] turned by the angles of [T, size / 2] cosines and sines."""
    cos, sin = rotation[0].unsqueeze(1), rotation[1].unsqueeze(1)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _rotation_table(rotary: Any, like: Tensor, positions: int, size: int) -> _Rotation:
    """Cosines and sines of all positions [positions, size / 2], in the dtype of `like`."""
    everywhere = torch.arange(positions, device=like.device).unsqueeze(0)
    cos, sin = rotary(like[:1].unsqueeze(0), everywhere)
    half = size // 2
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
