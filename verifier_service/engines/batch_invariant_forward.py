"""A forward whose logits of a sequence depend on that sequence alone, bit by bit.

Knows which forward can promise that on which device, and tries the promise before it is given;
does not know how the parts keep it.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn

from verifier_service.engines import batch_invariant_pages, fused, lean
from verifier_service.engines.attention import PagedCache, StepLayout, attend_parts
from verifier_service.engines.base import CacheShape
from verifier_service.engines.batch_invariant import by_rows, configure_matmul, invariant_packer
from verifier_service.engines.batch_invariant_attention import attend_tiles
from verifier_service.engines.batch_invariant_products import LinearFixer, fixed_rms
from verifier_service.engines.batch_invariant_trials import Trials
from verifier_service.engines.buckets import Bucket
from verifier_service.engines.captured_choice import rows_with_logits
from verifier_service.engines.forward import Chosen, Forward, bucket_layout, run_modules
from verifier_service.engines.layout import StepTensors
from verifier_service.engines.linear import packer
from verifier_service.engines.loading import LoadedModel, ModelLoadError
from verifier_service.engines.step_inputs import StepInputs

# Rotations whose angles depend on the longest sequence of a step.
_VARYING_ROTATIONS = ("dynamic", "longrope")
# Largest relative difference from transformers' modules at which the decoder counts as the same; in
# 16 bits both round, each in its own direction.
_TOLERANCE, _TOLERANCE_16_BIT = 0.02, 0.15
# Steps of one token are a case of their own for compilers.
_MIN_PAGED_TOKENS = 2


def choose_invariant(
    loaded: LoadedModel, cache: PagedCache, shape: CacheShape, device: torch.device, compiled: bool
) -> Chosen:
    """A forward that is independent of batch composition. Raises ModelLoadError where none is.

    On a CPU `compiled` changes nothing: what is compiled rounds by the number of tokens.
    """
    check_device(device)
    if device.type == "cuda":
        return choose_paged_invariant(loaded, cache, shape, device, compiled)
    _check_model(lean.supports(loaded.module, loaded.config) or _rotation(loaded.module))
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
    wanted = _reference(loaded, cache, trials.alone())
    decoder = lean.LeanDecoder(loaded.module, config, invariant_packer(pack_linear), pieces)

    def forward(step: StepTensors) -> Tensor:
        return decoder(step.ids, step.positions, step.rows, cache, step.layout)

    _check_forward(forward, wanted, trials, "lean decoder", loaded.compute)
    return Chosen(forward, f"lean decoder, {products}, batch-invariant")


def choose_paged_invariant(
    loaded: LoadedModel, cache: PagedCache, shape: CacheShape, device: torch.device, compiled: bool
) -> Chosen:
    """The forward over pages, of kernels with one tile for every step. Raises ModelLoadError.

    With `compiled` what lies between products, norms and attentions is compiled: it goes element by
    element, and one kernel serves every number of tokens from 2 on.
    """
    config = loaded.config
    kv_heads, size = loaded.layers[0]
    _check_model(
        fused.supports(loaded.module, config)
        or batch_invariant_pages.refusal(
            int(config.num_attention_heads), kv_heads, size, shape.block_size
        )
    )
    configure_matmul()
    trials = Trials(loaded, shape, device, _MIN_PAGED_TOKENS)
    wanted = _reference(loaded, cache, trials.alone())
    decoder = fused.FusedDecoder(
        loaded.module,
        config,
        loaded.max_model_len,
        compiled=compiled,
        pieces=fused.Pieces(fixed_rms, LinearFixer().fixed),
    )

    def run(ids: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor | None) -> Tensor:
        def attend(query: Tensor, layer: int) -> Tensor:
            pages = cache.keys[layer], cache.values[layer]

            def attend_part(query: Tensor, part: StepLayout) -> Tensor:
                return batch_invariant_pages.attend_fixed(query, *pages, part, decoder.scale)

            return attend_parts(query, layout, attend_part)

        return decoder(ids, positions, layout.write_slots, cache.flat, attend, rows)

    def forward(step: StepTensors) -> Tensor:
        return run(step.ids, step.positions, step.layout, step.rows)

    def captured(inputs: StepInputs, bucket: Bucket) -> Tensor:
        layout = bucket_layout(inputs, bucket, loaded.max_model_len)
        return run(inputs.ids, inputs.positions, layout, rows_with_logits(inputs))

    _check_forward(forward, wanted, trials, "fused decoder", loaded.compute)
    words = ", compiled" if compiled else ""
    description = f"fused decoder{words}, batch-invariant"
    return Chosen(forward, description, _MIN_PAGED_TOKENS, captured, compiled)


def _reference(loaded: LoadedModel, cache: PagedCache, step: StepTensors) -> Tensor:
    return run_modules(
        loaded.module, cache, step.ids, step.positions, step.layout, step.rows
    ).float()


def _check_model(refusal: str) -> None:
    if refusal:
        raise ModelLoadError(
            f"batch_invariant: not offered for this model ({refusal}); it is for Llama, Mistral, "
            "Qwen2 and Qwen3 without sliding windows or rotations that vary with the length"
        )


def _check_forward(
    forward: Forward, wanted: Tensor, trials: Trials, name: str, dtype: torch.dtype
) -> None:
    """Raises ModelLoadError where it is another function than the model's, or its bits vary."""
    tolerance = _TOLERANCE if dtype == torch.float32 else _TOLERANCE_16_BIT
    scale = float((wanted - wanted.mean(dim=-1, keepdim=True)).abs().max())
    # Not "greater": what is not a number must not pass.
    if not float((forward(trials.alone()).float() - wanted).abs().max()) <= tolerance * max(
        scale, 1e-6
    ):
        raise ModelLoadError(
            f"batch_invariant: not offered for this model (the {name}'s logits differ from those "
            "of transformers' modules)"
        )
    difference = trials.difference(forward)
    if difference:
        raise ModelLoadError(f"batch_invariant: this processor's sums differ {difference}")


def check_device(device: torch.device) -> None:
    """What can be said before a model is loaded. Raises ModelLoadError."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ModelLoadError(
                "batch_invariant: needs Triton on CUDA, and it is not installed here"
            )
    elif device.type != "cpu":
        raise ModelLoadError(f"batch_invariant: not offered on device {device}; on cpu and cuda")


def _rotation(module: nn.Module) -> str:
    kinds = {getattr(child, "rope_type", None) for child in module.modules()}
    varying = sorted(kind for kind in kinds if kind in _VARYING_ROTATIONS)
    return f"rotation of type {varying[0]}" if varying else ""
