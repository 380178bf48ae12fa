"""The torch engine over shared, copied and scattered blocks: the same keys, the same text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from verifier_service.engines.attention import PagedCache
from verifier_service.engines.base import Chunk
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling
from verifier_service.settings import VerifierSettings

GREEDY = Sampling(temperature=0.0)
PROMPT = [(i * 13 + 5) % 97 for i in range(70)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=192,
            eos_token_id=2,
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.25)
    folder: Path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    settings = VerifierSettings(
        str(folder), "unused", "tiny", device="cpu", dtype="float32", compile=False, max_num_seqs=4
    )
    return TorchEngine(settings)


def decode(target: TorchEngine, ids: list[int], start: int, blocks: list[int]) -> list[int]:
    """12 greedy tokens; positions before `start` are in the blocks already."""
    ids = list(ids)
    chunk = Chunk(ids[start:], start, blocks, 0, True, GREEDY, sequence_ids=ids)
    for _ in range(12):
        (verdict,) = target.run([chunk])
        assert verdict is not None
        ids += verdict.tokens
        last = len(ids) - 1
        chunk = Chunk(ids[-1:], last, blocks, 0, True, GREEDY, sequence_ids=ids)
    return ids[-12:]


def test_a_cpu_engine_wants_neighbours(target: TorchEngine) -> None:
    assert target.cache.neighbours and target.cache.block_size == 32


def test_copied_blocks_continue_as_the_original_does(target: TorchEngine) -> None:
    wanted = decode(target, PROMPT, 0, [0, 1, 2])
    target.copy_blocks([(0, 8), (1, 9)])
    assert decode(target, PROMPT, 64, [8, 9, 10]) == wanted


def test_shared_scattered_blocks_continue_as_the_original_does(target: TorchEngine) -> None:
    wanted = decode(target, PROMPT, 0, [0, 1, 2])
    assert decode(target, PROMPT, 64, [0, 1, 6]) == wanted
    assert decode(target, PROMPT, 32, [0, 5, 3]) == wanted
    # The owner's own blocks are untouched by what others wrote behind them.
    assert decode(target, PROMPT, 64, [0, 1, 2]) == wanted


def test_another_prompts_blocks_would_be_noticed(target: TorchEngine) -> None:
    """The tests above compare something: other keys give another text."""
    wanted = decode(target, PROMPT, 0, [0, 1, 2])
    other = [(token + 1) % 97 for token in PROMPT]
    decode(target, other, 0, [4, 5, 6])
    assert decode(target, PROMPT, 64, [4, 5, 7]) != wanted


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], [0, 1, 2, 3]),
        ([(0, 2)], [0, 1, 0, 3]),
        ([(0, 2), (1, 3)], [0, 1, 0, 1]),
        ([(0, 1), (1, 2)], [0, 0, 0, 3]),
        ([(1, 2), (0, 1)], [0, 0, 1, 3]),
        ([(0, 3), (1, 3)], [0, 1, 2, 1]),
    ],
)
def test_copies_count_as_done_one_after_the_other(
    pairs: list[tuple[int, int]], expected: list[int]
) -> None:
    cache = PagedCache([(1, 2), (2, 2)], 4, 3, torch.float32, torch.device("cpu"))
    for layer in (*cache.keys, *cache.values):
        layer.copy_(torch.arange(4.0).reshape(4, 1, 1, 1).expand_as(layer))
    cache.copy_blocks(pairs)
    for layer in (*cache.keys, *cache.values):
        assert [set(block.flatten().tolist()) for block in layer] == [{float(e)} for e in expected]
