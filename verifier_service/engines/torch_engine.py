"""The target through transformers and torch: one packed forward for each step.

Knows chunks, the paged cache and the rejection rules; does not know requests or proposers.
Everything between the forward and the emitted ids is tensors of the engine's device whose shapes
follow from (tokens, rows, sequences, drafts); the host reads one small result at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from verifier_service.engines.attention import PagedCache
from verifier_service.engines.base import (
    CacheShape,
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    is_verification,
    no_more,
    nobody,
)
from verifier_service.engines.batch_invariant_forward import check_device, choose_invariant
from verifier_service.engines.capturing import Capturing
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.cuda_capture import cuda_capture
from verifier_service.engines.device_time import device_time
from verifier_service.engines.eager_steps import EagerSteps
from verifier_service.engines.forward import Chosen, choose_forward
from verifier_service.engines.graphs import Capture, GraphRunner
from verifier_service.engines.loading import LoadedModel, load, resolve_device
from verifier_service.engines.long_prompts import lengths, read_once
from verifier_service.engines.prefill_graphs import PrefillGraphs
from verifier_service.engines.start_progress import stage
from verifier_service.engines.steps_ahead import StepsAhead, Wanted
from verifier_service.messages import ModelInfo, Sampling
from verifier_service.settings import VerifierSettings

_log = logging.getLogger(__name__)

_BLOCK_SIZE = {"cpu": 32, "cuda": 256}
_CPU_CACHE_BYTES = 2 << 30
_CUDA_CACHE_SHARE = 0.85


class TorchEngine:
    """An `Engine` over any transformers causal LM that speaks the attention interface."""

    def __init__(self, settings: VerifierSettings) -> None:
        """Load the model and make the cache. Raises ModelLoadError."""
        self._device = resolve_device(settings.device)
        if settings.batch_invariant:
            check_device(self._device)
        if self._device.type == "cpu" and settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self._loaded = load(
            settings.model,
            self._device,
            settings.dtype,
            settings.max_model_len,
            settings.quantization,
        )
        self._cache_shape = self._size_cache(settings)
        # One block more than the scheduler knows: where padding rows write.
        self._paged = PagedCache(
            self._loaded.layers,
            self._cache_shape.num_blocks + 1,
            self._cache_shape.block_size,
            self._loaded.compute,
            self._device,
        )
        self._paged.attach(self._loaded.module)
        self._chooser = Chooser(settings.rejection_rule, self._loaded.vocab_size, self._device)
        compiled = settings.compile and not settings.enforce_eager
        choose = choose_invariant if settings.batch_invariant else choose_forward
        slow = _replays(self._device) and compiled
        with (
            torch.inference_mode(),
            stage("compiling the forward, or finding it compiled") if slow else nullcontext(),
        ):
            chosen = choose(self._loaded, self._paged, self._cache_shape, self._device, compiled)
        _log.info("forward: %s", chosen.description)
        self._device_time = device_time(self._device)
        self._graphs: GraphRunner | None = None
        self._prefill: PrefillGraphs | None = None
        self._ahead: StepsAhead | None = None
        if _replays(self._device) and not settings.enforce_eager:
            with torch.inference_mode():
                self._capture(settings, chosen, compiled)
        self._eager = EagerSteps(
            chosen,
            self._cache_shape,
            self._loaded.group,
            self._chooser,
            self._device,
            self._device_time,
            self._graphs,
            settings.draft_ceiling + 1,
        )
        self._info = _info(settings, self._loaded, self._device, chosen.description)
        if self._graphs is not None and _loads_late(self._device):
            most = settings.max_num_batched_tokens
            long = lengths(min(settings.max_captured_prefill_tokens, most), most)
            read_once(self.run, long, self._cache_shape, self._loaded.max_model_len)

    @property
    def model(self) -> ModelInfo:
        return self._info

    @property
    def cache(self) -> CacheShape:
        return self._cache_shape

    @property
    def captures(self) -> bool:
        """Whether verifications are captured and replayed, by buckets of sequences and tokens."""
        return self._graphs is not None

    @torch.inference_mode()
    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        """See `Engine.run`. Verifications and short prefills are replayed where captured."""
        wanted = Wanted(goes_on, sure, joining)
        verifying = [chunk for chunk in chunks if is_verification(chunk)]
        if len(verifying) < len(chunks):
            told = self._run_mixed(chunks, verifying, wanted, meanwhile)
            if self._ahead is not None:
                self._ahead.settle(chunks, told, wanted)
            return told
        bucket = None if self._graphs is None else self._graphs.find(chunks)
        if self._graphs is None or self._ahead is None or bucket is None:
            return self._eager.run(chunks, meanwhile)
        self._ahead.forget_prompts()
        launched = self._graphs.launch(chunks, bucket)
        read = None
        if launched.result is None:
            read = self._eager.choose_on(launched, chunks)
        self._ahead.begin_blindly(chunks, launched, wanted)
        meanwhile()
        if read is not None:
            return read()
        chosen = [*launched.verdicts(len(chunks))]
        self._ahead.settle(chunks, chosen, wanted, launched)
        return [*chosen]

    def _run_mixed(
        self,
        chunks: list[Chunk],
        rounds: list[Chunk],
        wanted: Wanted,
        meanwhile: Meanwhile,
    ) -> list[Verdict | None]:
        """A step with prompts in it, or parts of them."""
        graphs, ahead = self._graphs, self._ahead
        # Rounds that were begun ahead are not worth a second time beside a prompt.
        begun = graphs is not None and graphs.has_begun(rounds)
        if self._prefill is not None and ahead is not None and not begun:
            replayed = self._prefill.serve(
                chunks, meanwhile, lambda launched: ahead.begin_blindly(chunks, launched, wanted)
            )
            if replayed is not None:
                return replayed
        prompts = [chunk for chunk in chunks if not is_verification(chunk)]
        if rounds and not begun and self._eager.is_bound_by_device(chunks):
            return _in_order(chunks, *self._eager.run_together(rounds, prompts, meanwhile))
        bucket = graphs.find(rounds) if graphs is not None and rounds else None
        if graphs is None or bucket is None:
            return self._eager.run(chunks, meanwhile)
        launched = graphs.launch(rounds, bucket)
        read = None
        if launched.result is None:
            read = self._eager.choose_on(launched, rounds)
        # The host prepares the prefill while the device verifies.
        others = self._read_prompts(prompts, meanwhile)
        verified = launched.verdicts(len(rounds)) if read is None else read()
        return _in_order(chunks, verified, others)

    def _read_prompts(self, chunks: list[Chunk], meanwhile: Meanwhile) -> list[Verdict | None]:
        replayed = None if self._prefill is None else self._prefill.serve(chunks, meanwhile)
        return self._eager.run(chunks, meanwhile) if replayed is None else replayed

    def _capture(self, settings: VerifierSettings, chosen: Chosen, compiled: bool) -> None:
        assert chosen.captured is not None
        capturing = Capturing(
            settings,
            chosen.captured,
            self._loaded.max_model_len,
            self._cache_shape,
            self._chooser,
            self._device,
            self._new_capture,
            compiled,
            chosen.keeps_apart,
        )
        self._graphs = capturing.decoding()
        self._prefill = capturing.prefill()
        self._ahead = StepsAhead(
            self._graphs, self._prefill, self._cache_shape, self._loaded.max_model_len
        )

    def _new_capture(self) -> Capture:
        capture = cuda_capture()
        return capture if self._device_time is None else self._device_time.timed(capture)

    def profile(
        self, counts: Sequence[int], context: int, repeats: int = 5, sequences: int = 1
    ) -> dict[int, float]:
        """Median seconds of a greedy step, by how many query tokens each sequence has.

        Each of the `sequences` has `context` tokens of its own behind it; fewer where the cache
        holds fewer. Raises ValueError where it does not even hold the query tokens.
        """
        size = self._cache_shape.block_size
        each = self._cache_shape.num_blocks // sequences * size
        context = min(context, min(self._loaded.max_model_len, each) - max(counts))
        if context < 0:
            raise ValueError(f"no room for {max(counts)} tokens of each of {sequences} sequences")
        seconds = {}
        for count in counts:
            need = -(-(context + count) // size)
            chunks = [
                Chunk(
                    [0] * count,
                    context,
                    list(range(i * need, (i + 1) * need)),
                    count - 1,
                    True,
                    Sampling(temperature=0.0),
                )
                for i in range(sequences)
            ]
            self.run(chunks)
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                self.run(chunks)
                times.append(time.perf_counter() - start)
            seconds[count] = sorted(times)[len(times) // 2]
        return seconds

    def device_busy_s(self) -> float | None:
        """See `Engine.device_busy_s`."""
        return None if self._device_time is None else self._device_time.seconds()

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `Engine.copy_blocks`."""
        self._paged.copy_blocks(pairs)

    def close(self) -> None:
        """Drop the cache; the engine cannot run afterwards."""
        self._paged.drop()

    def _size_cache(self, settings: VerifierSettings) -> CacheShape:
        size = _BLOCK_SIZE[self._device.type]
        compute = self._loaded.compute
        token_bytes = (
            sum(2 * heads * width for heads, width in self._loaded.layers) * compute.itemsize
        )
        if settings.kv_cache_bytes is not None:
            available = settings.kv_cache_bytes
        elif self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            available = int(free * _CUDA_CACHE_SHARE)
        else:
            available = _CPU_CACHE_BYTES
        longest = -(-self._loaded.max_model_len // size)
        wanted = longest * settings.max_num_seqs
        blocks = min(available // (token_bytes * size), wanted)
        if blocks < longest:
            # One sequence of the longest length must always fit, or it could never finish.
            blocks = longest
            _log.warning(
                "kv cache: %d bytes hold less than one sequence of max_model_len %d; taking %d",
                available,
                self._loaded.max_model_len,
                longest * size * token_bytes,
            )
        return CacheShape(int(blocks), size, neighbours=self._device.type == "cpu")


def _replays(device: torch.device) -> bool:
    """Whether steps can be captured and replayed."""
    return device.type == "cuda"


def _loads_late(device: torch.device) -> bool:
    """Whether a kernel is loaded when it is first launched."""
    return device.type == "cuda"


def _in_order(
    chunks: Sequence[Chunk],
    verified: Sequence[Verdict | None],
    others: Sequence[Verdict | None],
) -> list[Verdict | None]:
    """The verdicts of a step, of its rounds and of its other chunks."""
    rounds, rest = iter(verified), iter(others)
    return [next(rounds) if is_verification(chunk) else next(rest) for chunk in chunks]


def _info(
    settings: VerifierSettings, loaded: LoadedModel, device: torch.device, forward: str
) -> ModelInfo:
    return ModelInfo(
        name=settings.served_model_name,
        vocab_size=loaded.vocab_size,
        max_model_len=loaded.max_model_len,
        eos_token_ids=loaded.eos_token_ids,
        engine="torch",
        device=str(device),
        dtype=str(loaded.weights).removeprefix("torch."),
        extra={"forward": forward, "quantization": loaded.quantization},
    )
