"""The promise as a whole: a sequence's logits, bit by bit, in every composition of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from verifier_service.engines import batch_invariant_forward, lean, torch_engine
from verifier_service.engines.attention import PagedCache
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.batch_invariant_forward import choose_invariant
from verifier_service.engines.forward import choose_forward
from verifier_service.engines.layout import pack
from verifier_service.engines.loading import ModelLoadError, load
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling
from verifier_service.settings import VerifierSettings

CPU = torch.device("cpu")
GREEDY = Sampling(temperature=0.0)
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LENGTH = 136
# Tokens whose logits are compared: the last of a prompt and those decoded behind it.
FIRST = 123
IDS = [(i * 7919 + 5) % 97 for i in range(LENGTH)]


def save(model: PreTrainedModel, folder: Path) -> Path:
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.25)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(LlamaForCausalLM(LlamaConfig(**SIZES)), tmp_path_factory.mktemp("invariant"))


@dataclass
class Target:
    """A forward with a cache; `logits` gives those of the chunks that choose, [rows, V]."""

    forward: Callable[..., Tensor]
    shape: CacheShape
    group: int
    description: str

    @classmethod
    def of(cls, folder: Path, invariant: bool, **options: str) -> Target:
        loaded = load(str(folder), CPU, options.pop("dtype", "float32"), None, **options)
        shape = CacheShape(80, 32, neighbours=True)
        cache = PagedCache(loaded.layers, 81, 32, loaded.compute, CPU)
        cache.attach(loaded.module)
        choose = choose_invariant if invariant else choose_forward
        with torch.inference_mode():
            chosen = choose(loaded, cache, shape, CPU, False)

        def forward(chunks: list[Chunk]) -> Tensor:
            assert cache is not None
            return chosen.forward(pack(chunks, shape, loaded.group, CPU))

        return cls(forward, shape, loaded.group, chosen.description)

    @torch.inference_mode()
    def logits(self, chunks: list[Chunk]) -> Tensor:
        return self.forward(chunks).clone()


def part(begin: int, end: int, rows: int, blocks: list[int] | None = None) -> Chunk:
    """Tokens begin … end - 1 of the sequence, the last `rows` of which have logits."""
    table = blocks or list(range(6))
    return Chunk(IDS[begin:end], begin, table, max(rows - 1, 0), rows > 0, GREEDY)


def plain(target: Target) -> Tensor:
    """The prompt at once, then token by token, alone: logits [LENGTH - FIRST, V]."""
    rows = [target.logits([part(0, FIRST + 1, 1)])]
    rows += [target.logits([part(at, at + 1, 1)]) for at in range(FIRST + 1, LENGTH)]
    return torch.cat(rows)


def verified(target: Target, k: int) -> Tensor:
    """The same with `k` drafts in every step."""
    rows = [target.logits([part(0, FIRST + 1, 1)])]
    for at in range(FIRST + 1, LENGTH, k + 1):
        end = min(at + k + 1, LENGTH)
        rows.append(target.logits([part(at, end, end - at)]))
    return torch.cat(rows)


def chunked(target: Target, size: int) -> Tensor:
    """The prompt in chunks of `size`, and everything behind it at once."""
    for begin in range(0, FIRST, size):
        target.logits([part(begin, min(begin + size, FIRST), 0)])
    return target.logits([part(FIRST, LENGTH, LENGTH - FIRST)])


def beside(target: Target, scattered: bool = False) -> Tensor:
    """Beside 7 others, at other places of the pack, which prefill and verify in the same steps."""
    blocks = [70, 3, 71, 5, 72, 1] if scattered else None
    others = [list(range(6 + 8 * i, 14 + 8 * i)) for i in range(7)]
    rows = []
    begins = [0, *range(FIRST + 1, LENGTH, 4)]
    for step, begin in enumerate(begins):
        end = FIRST + 1 if step == 0 else min(begin + 4, LENGTH)
        count = 1 if step == 0 else end - begin
        neighbours = [
            Chunk(IDS[-9 - i :], 20 * step, table, i, True, GREEDY)
            for i, table in enumerate(others)
        ]
        place = step % 8
        before = sum(chunk.drafts + 1 for chunk in neighbours[:place])
        chunks = [*neighbours[:place], part(begin, end, count, blocks), *neighbours[place:]]
        rows.append(target.logits(chunks)[before : before + count])
    return torch.cat(rows)


COMPOSITIONS: dict[str, Callable[[Target], Tensor]] = {
    "1 draft": lambda target: verified(target, 1),
    "3 drafts": lambda target: verified(target, 3),
    "8 drafts": lambda target: verified(target, 8),
    "chunks of 7": lambda target: chunked(target, 7),
    "chunks of 64": lambda target: chunked(target, 64),
    "beside 7": beside,
    "beside 7, scattered": lambda target: beside(target, scattered=True),
}


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_composition_gives_the_same_bits(
    llama_folder: Path, dtype: str, quantization: str
) -> None:
    target = Target.of(llama_folder, True, dtype=dtype, quantization=quantization)
    wanted = plain(target)
    same = {name: torch.equal(compose(target), wanted) for name, compose in COMPOSITIONS.items()}
    assert same == dict.fromkeys(COMPOSITIONS, True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_the_option_the_bits_differ(llama_folder: Path, dtype: str) -> None:
    """Or the test above would test nothing."""
    target = Target.of(llama_folder, False, dtype=dtype)
    wanted = plain(target)
    found = [compose(target) for compose in COMPOSITIONS.values()]
    assert not all(torch.equal(logits, wanted) for logits in found)
    assert all(torch.allclose(logits, wanted, atol=1e-2) for logits in found)


def test_both_forwards_are_the_same_function(llama_folder: Path) -> None:
    invariant = plain(Target.of(llama_folder, True))
    fastest = plain(Target.of(llama_folder, False))
    assert torch.allclose(invariant, fastest, atol=1e-3)


def test_head_norms_and_biases_keep_the_promise(tmp_path: Path) -> None:
    config = Qwen3Config(**SIZES, head_dim=40, attention_bias=True)
    target = Target.of(save(Qwen3ForCausalLM(config), tmp_path), True)
    wanted = plain(target)
    assert torch.equal(verified(target, 3), wanted)
    assert torch.equal(beside(target), wanted)


def engine(folder: Path, **changes: object) -> TorchEngine:
    options: dict[str, object] = {"device": "cpu", "dtype": "float32", "max_num_seqs": 4}
    return TorchEngine(
        VerifierSettings(str(folder), "unused", "tiny", **{**options, **changes})  # type: ignore[arg-type]
    )


def test_the_engine_says_that_it_is_batch_invariant(llama_folder: Path) -> None:
    assert "batch-invariant" in engine(llama_folder, batch_invariant=True).model.extra["forward"]
    assert "batch-invariant" not in engine(llama_folder).model.extra["forward"]


def test_log_probabilities_are_the_same_bits_too(llama_folder: Path) -> None:
    target = engine(llama_folder, batch_invariant=True)
    asking = Sampling(temperature=0.0, logprobs=4)
    ids = IDS[:90]
    target.run([Chunk(ids[:-1], 0, [0, 1, 2], 0, False, asking)])
    alone = [Chunk(ids[-1:], 89, [0, 1, 2], 0, True, asking)]
    (wanted,) = target.run(alone)
    other = Chunk(IDS[40:70], 0, [4, 5], 0, True, Sampling(temperature=1.0, logprobs=2))
    drafts = Chunk([ids[-1], 3, 4], 89, [0, 1, 2], 2, True, asking)
    found = target.run([other, drafts])[1]
    assert wanted is not None and found is not None
    assert found.logprobs[0] == wanted.logprobs[0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)), "sliding-window"),
        (lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2)), "model type gpt2"),
        (
            lambda: LlamaForCausalLM(
                LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
            ),
            "rotation of type dynamic",
        ),
    ],
)
def test_models_for_which_it_is_not_offered_are_refused(
    model: Callable[[], PreTrainedModel], message: str, tmp_path: Path
) -> None:
    folder = save(model(), tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        engine(folder, batch_invariant=True)


def test_a_device_on_which_it_is_not_offered_is_refused(llama_folder: Path) -> None:
    loaded = load(str(llama_folder), CPU, "float32", None)
    cache = PagedCache(loaded.layers, 2, 32, loaded.compute, CPU)
    with pytest.raises(ModelLoadError, match="not offered on device mps; on cpu and cuda"):
        choose_invariant(loaded, cache, CacheShape(1, 32), torch.device("mps"), False)


def test_a_device_is_refused_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no model in the folder: anything else would say so."""
    monkeypatch.setattr(torch_engine, "resolve_device", lambda name: torch.device("mps"))
    with pytest.raises(ModelLoadError, match="not offered on device mps"):
        engine(tmp_path, batch_invariant=True)


def test_a_promise_that_does_not_hold_here_is_not_given(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention that rounds by the number of queries, as on some other processor."""

    def attend(query: Tensor, *rest: object) -> Tensor:
        mixed: Tensor = tiles(query, *rest)  # type: ignore[arg-type]
        return mixed * (1 + query.shape[0] * 1e-6)

    tiles = batch_invariant_forward.attend_tiles
    monkeypatch.setattr(batch_invariant_forward, "attend_tiles", attend)
    with pytest.raises(ModelLoadError, match="sums differ between one token and several"):
        engine(llama_folder, batch_invariant=True)


def test_a_decoder_that_computes_something_else_is_not_taken(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "_rms", lambda x, weight, epsilon: x * weight)
    with pytest.raises(ModelLoadError, match="logits differ from those of transformers' modules"):
        engine(llama_folder, batch_invariant=True)
