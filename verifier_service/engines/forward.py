"""Which code computes a step's logits: transformers' modules, or a decoder of our own.

Knows loaded models, the cache and step tensors; does not know what is done with logits.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from verifier_service.engines import fused, lean
from verifier_service.engines.attention import PagedCache, StepLayout, attend_pages, attend_parts
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.buckets import Bucket
from verifier_service.engines.captured_choice import rows_with_logits
from verifier_service.engines.graphs import BucketForward
from verifier_service.engines.layout import StepTensors, pack
from verifier_service.engines.linear import least_rows, pack_linears, packer
from verifier_service.engines.loading import LoadedModel
from verifier_service.engines.rounds_apart import rounds_apart
from verifier_service.engines.short_attention import short_attention
from verifier_service.engines.skinny_layers import SkinnyProducts
from verifier_service.engines.step_inputs import StepInputs
from verifier_service.messages import Sampling

_log = logging.getLogger(__name__)

# Largest relative difference of logits at which two forwards count as the same function. In 16 bits
# transformers' own are 0.05 off those in float32, and so are ours, in another direction.
_TOLERANCE, _TOLERANCE_16_BIT = 0.02, 0.15

Forward = Callable[[StepTensors], Tensor]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A forward, what it is in words, and the fewest tokens it takes.

    `captured` is the same over a bucket's inputs, where that can be captured and replayed;
    `compiled` says whether a compiler has joined its operators, and `keeps_apart` whether a
    captured prefill reads keys of rounds of so many tokens as often as a round's own forward does.
    """

    forward: Forward
    description: str
    min_tokens: int = 1
    captured: BucketForward | None = None
    compiled: bool = False
    keeps_apart: Callable[[int], bool] = lambda queries: False


def choose_forward(
    loaded: LoadedModel, cache: PagedCache, shape: CacheShape, device: torch.device, compiled: bool
) -> Chosen:
    """The fastest forward that this model and device have.

    On a CPU the linear layers are packed; the Llama family takes the lean decoder, elsewhere the
    fused one, if it computes what transformers' modules do on a sample. Other families' layers are
    compiled if asked for.
    """
    modules = _modules(loaded.module, cache)
    if device.type != "cpu":
        return choose_paged(loaded, cache, shape, device, compiled)
    products, pack_linear = packer(loaded.weights)
    refusal = lean.supports(loaded.module, loaded.config)
    if not refusal:
        sample = _sample(loaded, shape, device)
        wanted = modules(sample)
        decoder = lean.LeanDecoder(loaded.module, loaded.config, pack_linear)

        def forward(step: StepTensors) -> Tensor:
            return decoder(step.ids, step.positions, step.rows, cache, step.layout)

        if _same(forward(sample), wanted, loaded.compute):
            # Added once, and not by every product.
            return Chosen(forward, f"lean decoder, {products}", least_rows(loaded.weights))
        refusal = "its logits differ from those of transformers' modules"
    _log.info("the lean decoder does not serve this model: %s", refusal)
    pack_linears(loaded.module, pack_linear)
    if compiled and _compile(loaded.module, len(loaded.layers), device):
        # torch.compile treats a size of 1 as a case of its own, with kernels that need not round
        # as those for every other size do.
        return Chosen(modules, f"transformers' modules, compiled, {products}", min_tokens=2)
    return Chosen(modules, f"transformers' modules, {products}")


def choose_paged(
    loaded: LoadedModel, cache: PagedCache, shape: CacheShape, device: torch.device, compiled: bool
) -> Chosen:
    """Forwards over a paged attention kernel, which need no more than fixed memory."""
    modules = _modules(loaded.module, cache)
    words = ", compiled" if compiled else ""
    refusal = fused.supports(loaded.module, loaded.config)
    if not refusal:
        sample = _sample(loaded, shape, device)
        wanted = modules(sample)
        products = SkinnyProducts()
        decoder = fused.FusedDecoder(
            loaded.module,
            loaded.config,
            loaded.max_model_len,
            compiled=compiled,
            pieces=fused.Pieces(linear=products.linear, gated=products.gated),
        )

        heads = int(loaded.config.num_attention_heads)
        kernel = short_attention(cache, heads)

        def keeps_apart(queries: int) -> bool:
            if kernel is None or not kernel.apart:
                return False
            return kernel.takes(heads, cache.keys[0], queries)

        def run(ids: Tensor, positions: Tensor, layout: StepLayout, rows: Tensor | None) -> Tensor:
            def attend(query: Tensor, layer: int) -> Tensor:
                pages = cache.keys[layer], cache.values[layer]

                def attend_part(query: Tensor, part: StepLayout) -> Tensor:
                    if kernel is not None and kernel.serves(query, pages[0], part):
                        return kernel.attend(query, *pages, part, decoder.scale)
                    out = attend_pages(query, *pages, part, decoder.scale, 0)
                    if kernel is not None and part.rounds is not None:
                        kernel.attend(query, *pages, part.rounds, decoder.scale, out)
                    return out

                return attend_parts(query, layout, attend_part)

            return decoder(ids, positions, layout.write_slots, cache.flat, attend, rows)

        def forward(step: StepTensors) -> Tensor:
            return run(step.ids, step.positions, step.layout, step.rows)

        def captured(inputs: StepInputs, bucket: Bucket) -> Tensor:
            layout = bucket_layout(inputs, bucket, loaded.max_model_len)
            if bucket.rows and keeps_apart(bucket.most_drafts + 1):
                layout = rounds_apart(layout, bucket.most_drafts + 1)
            return run(inputs.ids, inputs.positions, layout, rows_with_logits(inputs))

        if _same(forward(sample).float(), wanted.float(), loaded.compute):
            words = f"fused decoder{words}"
            return Chosen(forward, words, 2, captured, compiled, keeps_apart)
        refusal = "its logits differ from those of transformers' modules"
    _log.info("the fused decoder does not serve this model: %s", refusal)
    if compiled and not _compile(loaded.module, len(loaded.layers), device):
        compiled, words = False, ""

    def modules_captured(inputs: StepInputs, bucket: Bucket) -> Tensor:
        layout = bucket_layout(inputs, bucket, loaded.max_model_len)
        rows = rows_with_logits(inputs)
        return run_modules(loaded.module, cache, inputs.ids, inputs.positions, layout, rows)

    return Chosen(modules, f"transformers' modules{words}", 2, modules_captured, compiled)


def bucket_layout(inputs: StepInputs, bucket: Bucket, max_key: int) -> StepLayout:
    """Where a bucket's tokens read and write; contexts are at most `max_key` tokens."""
    return StepLayout(
        inputs.slots,
        cu_query=inputs.cu_query,
        cu_key=inputs.cu_key,
        used=inputs.used,
        table=inputs.table,
        max_query=bucket.query,
        max_key=max_key,
    )


def _modules(module: nn.Module, cache: PagedCache) -> Forward:
    def forward(step: StepTensors) -> Tensor:
        return run_modules(module, cache, step.ids, step.positions, step.layout, step.rows)

    return forward


def run_modules(
    module: nn.Module,
    cache: PagedCache,
    ids: Tensor,
    positions: Tensor,
    layout: StepLayout,
    rows: Tensor | None,
) -> Tensor:
    """Logits [R, V] of transformers' own modules; `rows` [R] index into tokens, None for all."""
    cache.layout = layout
    try:
        output = module(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=0 if rows is None else rows,
        )
    finally:
        cache.layout = None
    logits: Tensor = output.logits[0]
    return logits


def _sample(loaded: LoadedModel, shape: CacheShape, device: torch.device) -> StepTensors:
    """A prefill of a few scattered ids, with logits of its last four positions."""
    count = min(16, shape.block_size)
    ids = [(i * 7919 + 11) % loaded.vocab_size for i in range(count)]
    chunk = Chunk(ids, 0, [0], min(3, count - 1), True, Sampling(temperature=0.0))
    return pack([chunk], shape, loaded.group, device)


def _same(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    tolerance = _TOLERANCE if dtype == torch.float32 else _TOLERANCE_16_BIT
    scale = float((wanted - wanted.mean(dim=-1, keepdim=True)).abs().max())
    return float((found - wanted).abs().max()) <= tolerance * max(scale, 1e-6)


def _compile(module: nn.Module, count: int, device: torch.device) -> bool:
    """Compile the decoder layers: one graph serves them all, for any number of tokens."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        _log.warning("no C++ compiler found: decoder layers are not compiled and run slower")
        return False
    for child in module.modules():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            for layer in child:
                layer.compile(dynamic=True)
            return True
    _log.warning("the model's decoder layers were not found: they are not compiled")
    return False
