"""A forward whose logits of a sequence depend on that sequence alone, bit by bit.

Knows which forward can promise that on which device, and tries the promise before it is given;
does not know how the parts keep it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from verifier_service.engines import lean
from verifier_service.engines.attention import PagedCache
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.batch_invariant import by_rows, invariant_packer
from verifier_service.engines.batch_invariant_attention import attend_tiles
from verifier_service.engines.forward import Chosen, Forward, run_modules
from verifier_service.engines.layout import StepTensors, pack
from verifier_service.engines.linear import packer
from verifier_service.engines.loading import LoadedModel, ModelLoadError
from verifier_service.messages import Sampling

# Rotations whose angles depend on the longest sequence of a step.
_VARYING_ROTATIONS = ("dynamic", "longrope")
# Largest relative difference from transformers' modules at which the decoder counts as the same.
_TOLERANCE = 0.02
_GREEDY = Sampling(temperature=0.0)


def choose_invariant(
    loaded: LoadedModel, cache: PagedCache, shape: CacheShape, device: torch.device, compiled: bool
) -> Chosen:
    """A forward that is independent of batch composition. Raises ModelLoadError where none is.

    `compiled` changes nothing: what is compiled rounds by the number of tokens.
    """
    check_device(device)
    refusal = lean.supports(loaded.module, loaded.config) or _rotation(loaded.module)
    if refusal:
        raise ModelLoadError(
            f"batch_invariant: not offered for this model ({refusal}); it is for Llama, Mistral, "
            "Qwen2 and Qwen3 without sliding windows or rotations that vary with the length"
        )
    products, pack_linear = packer(loaded.weights)
    config = loaded.config
    heads = int(config.num_attention_heads) + int(config.num_key_value_heads)
    size = loaded.layers[0][1]
    pieces = lean.Pieces(
        attend=attend_tiles,
        turn=by_rows(lean.turn, heads * size),
        gated=by_rows(lean.gated, int(config.intermediate_size)),
    )
    trials = Trials(loaded, shape, device)
    # Before the decoder joins its layers: it may take over the module's weights.
    step = trials.alone()
    wanted = run_modules(loaded.module, cache, step.ids, step.positions, step.layout, step.rows)
    decoder = lean.LeanDecoder(loaded.module, config, invariant_packer(pack_linear), pieces)

    def forward(step: StepTensors) -> Tensor:
        return decoder(step.ids, step.positions, step.rows, cache, step.layout)

    found = forward(trials.alone())
    scale = float((wanted - wanted.mean(dim=-1, keepdim=True)).abs().max())
    if float((found - wanted).abs().max()) > _TOLERANCE * max(scale, 1e-6):
        raise ModelLoadError(
            "batch_invariant: not offered for this model (the lean decoder's logits differ from "
            "those of transformers' modules)"
        )
    difference = trials.difference(forward)
    if difference:
        raise ModelLoadError(f"batch_invariant: this processor's sums differ {difference}")
    return Chosen(forward, f"lean decoder, {products}, batch-invariant")


def check_device(device: torch.device) -> None:
    """What can be said before a model is loaded. Raises ModelLoadError."""
    if device.type != "cpu":
        raise ModelLoadError(f"batch_invariant: not offered on device {device}; on cpu")


class Trials:
    """A sequence's last logits, computed in several ways that must give the same bits.

    Uses the first blocks of a cache in which nothing is held yet.
    """

    def __init__(self, loaded: LoadedModel, shape: CacheShape, device: torch.device) -> None:
        self._shape, self._device, self._group = shape, device, loaded.group
        half = min(shape.num_blocks // 2 or 1, 2)
        room = min(half * shape.block_size, loaded.max_model_len)
        # The second sequence needs blocks of its own.
        self._others = shape.num_blocks >= 2
        self._blocks = list(range(half))
        self._other_blocks = list(range(half, 2 * half))
        count = min(room, 45)
        self._ids = [(i * 7919 + 11) % loaded.vocab_size for i in range(count)]
        self._tail = min(5, count)

    def alone(self) -> StepTensors:
        """The whole sequence in one step, with logits of its last tokens."""
        return self._pack([self._chunk(0, len(self._ids), self._tail - 1)])

    def difference(self, forward: Forward) -> str:
        """Which way gives other bits than `alone`, in words; empty where none does."""
        count, tail = len(self._ids), self._tail
        wanted = forward(self.alone())
        one_by_one = [
            forward(self._pack([self._chunk(at, at + 1, 0)]))[0]
            for at in range(count - tail, count)
        ]
        if not torch.equal(torch.stack(one_by_one), wanted):
            return "between one token and several in a step"
        middle = max((count - tail) // 2, 1)
        for begin in range(0, count - tail, middle):
            end = min(begin + middle, count - tail)
            forward(self._pack([self._chunk(begin, end, None)]))
        if not torch.equal(
            forward(self._pack([self._chunk(count - tail, count, tail - 1)])), wanted
        ):
            return "between a prompt computed at once and in parts"
        if not self._others:
            return ""
        other = Chunk(self._ids[::-1], 0, self._other_blocks, 0, True, _GREEDY)
        beside = forward(self._pack([other, self._chunk(count - tail, count, tail - 1)]))
        return "" if torch.equal(beside[1:], wanted) else "beside another sequence"

    def _chunk(self, begin: int, end: int, drafts: int | None) -> Chunk:
        """The sequence's tokens from `begin` to `end`; None as drafts: nothing is chosen."""
        ids = self._ids[begin:end]
        return Chunk(ids, begin, self._blocks, drafts or 0, drafts is not None, _GREEDY)

    def _pack(self, chunks: Sequence[Chunk]) -> StepTensors:
        return pack(list(chunks), self._shape, self._group, self._device)


def _rotation(module: nn.Module) -> str:
    kinds = {getattr(child, "rope_type", None) for child in module.modules()}
    varying = sorted(kind for kind in kinds if kind in _VARYING_ROTATIONS)
    return f"rotation of type {varying[0]}" if varying else ""
