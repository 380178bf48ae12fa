"""The torch engine on tiny random models, against transformers' own forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from verifier_service.engines import lean
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.loading import ModelLoadError, load, resolve_device
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import RejectionRule, Sampling
from verifier_service.settings import VerifierSettings

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)),
    "qwen2-bias": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=2)
    ),
}
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="session", params=sorted(MODELS))
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save("llama", tmp_path_factory)


def _save(name: str, factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(11)
    folder = factory.mktemp(name)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Wide enough that the logits differ by much more than rounding.
            parameter.copy_(torch.randn_like(parameter) * 0.25)
    model.save_pretrained(folder)
    return folder


def engine(folder: Path, **changes: object) -> TorchEngine:
    options: dict[str, object] = {
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "max_num_seqs": 4,
    }
    options.update(changes)
    return TorchEngine(VerifierSettings(str(folder), "unused", "tiny", **options))  # type: ignore[arg-type]


def reference(folder: Path, ids: list[int], count: int) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = list(ids)
    for _ in range(count):
        logits = model(torch.tensor([ids])).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[-count:]


def decode(
    target: TorchEngine, ids: list[int], count: int, drafts: list[int], blocks: list[int]
) -> list[int]:
    """Greedy continuation through the engine, verifying slices of `drafts` where they stand."""
    out: list[int] = []
    (verdict,) = target.run([Chunk(ids, 0, blocks, 0, True, GREEDY)])
    assert verdict is not None
    out += verdict.tokens
    while len(out) < count:
        draft = drafts[len(out) : len(out) + 3]
        start = len(ids) + len(out) - 1
        chunk = Chunk([out[-1], *draft], start, blocks, len(draft), True, GREEDY)
        (verdict,) = target.run([chunk])
        assert verdict is not None
        assert len(verdict.tokens) == verdict.accepted + 1
        out += verdict.tokens
    return out[:count]


PROMPT = [5, 9, 60, 33, 9, 60, 12]


def test_every_architecture_decodes_as_transformers_does(any_model: Path) -> None:
    target = engine(any_model)
    want = reference(any_model, PROMPT, 20)
    wrong = [(token + 1) % 97 for token in want]
    half = [a if i % 3 else b for i, (a, b) in enumerate(zip(want, wrong, strict=True))]
    for drafts in (want, wrong, half, []):
        assert decode(target, PROMPT, 20, drafts, [0, 1]) == want


def test_blocks_may_lie_anywhere(any_model: Path) -> None:
    """The copying path for scattered blocks equals the view of neighbouring ones."""
    target = engine(any_model)
    ids = [(7 * i) % 97 for i in range(70)]
    want = reference(any_model, ids, 6)
    assert decode(target, ids, 6, want, [0, 1, 2]) == want
    assert decode(target, ids, 6, want, [3, 0, 2]) == want


def test_prefill_in_chunks_beside_other_sequences(llama: Path) -> None:
    target = engine(llama)
    ids = [(5 * i) % 97 for i in range(40)]
    want = reference(llama, ids, 4)
    other = reference(llama, PROMPT, 4)
    target.run(
        [Chunk(PROMPT, 0, [5], 0, True, GREEDY), Chunk(ids[:13], 0, [0, 1], 0, False, GREEDY)]
    )
    verdicts = target.run(
        [
            Chunk([other[0], other[1]], len(PROMPT), [5], 1, True, GREEDY),
            Chunk(ids[13:30], 13, [0, 1], 0, False, GREEDY),
        ]
    )
    assert verdicts[1] is None
    assert verdicts[0] is not None
    assert verdicts[0].tokens == other[1:3]
    verdicts = target.run([Chunk(ids[30:], 30, [0, 1], 0, True, GREEDY)])
    assert verdicts[0] is not None
    assert verdicts[0].tokens == want[:1]


def test_rejected_drafts_leave_no_trace(llama: Path) -> None:
    target = engine(llama)
    want = reference(llama, PROMPT, 12)
    assert decode(target, PROMPT, 12, [1] * 12, [0]) == want


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", "lean decoder"),
        ("qwen2-bias", "lean decoder"),
        ("qwen3", "lean decoder"),
        ("mistral-window", "transformers' modules"),
        ("gpt2", "transformers' modules"),
    ],
)
def test_which_models_take_the_lean_decoder(
    name: str, expected: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = _save(name, tmp_path_factory)
    assert engine(folder).model.extra["forward"].startswith(expected)


def test_a_decoder_that_computes_something_else_is_not_used(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(lean, "_rms", lambda x, weight, epsilon: x * weight)
    target = engine(llama)
    assert target.model.extra["forward"].startswith("transformers' modules")
    assert "its logits differ" in caplog.text
    want = reference(llama, PROMPT, 5)
    assert decode(target, PROMPT, 5, want, [0]) == want


def test_a_seeded_choice_does_not_depend_on_drafts_or_batch(llama: Path) -> None:
    target = engine(llama)
    hot = Sampling(temperature=1.0, seed=9, top_k=40, top_p=0.95)
    (first,) = target.run([Chunk(PROMPT, 0, [0], 0, True, hot)])
    assert first is not None
    (second,) = target.run([Chunk(first.tokens, len(PROMPT), [0], 0, True, hot)])
    assert second is not None
    draft = [*first.tokens, *second.tokens, 50]
    verdicts = target.run(
        [
            Chunk(draft, len(PROMPT), [0], 2, True, hot),
            Chunk([1, 2, 3], 0, [4], 0, True, Sampling(temperature=0.5, seed=1)),
        ]
    )
    assert verdicts[0] is not None
    assert verdicts[0].tokens[0] == second.tokens[0]
    assert verdicts[0].accepted >= 1


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_every_rule_runs_greedy_and_random_rows(llama: Path, rule: RejectionRule) -> None:
    target = engine(llama, rejection_rule=rule)
    hot = Sampling(temperature=1.0, seed=3)
    target.run([Chunk(PROMPT, 0, [0], 0, True, GREEDY), Chunk(PROMPT, 0, [1], 0, True, hot)])
    verdicts = target.run(
        [
            Chunk([4, 5, 6], len(PROMPT), [0], 2, True, GREEDY),
            Chunk([4, 5], len(PROMPT), [1], 1, True, hot),
        ]
    )
    for verdict, drafts in zip(verdicts, (2, 1), strict=True):
        assert verdict is not None
        assert 0 <= verdict.accepted <= drafts
        assert len(verdict.tokens) == verdict.accepted + 1
        assert all(0 <= token < 97 for token in verdict.tokens)


def test_profile_measures_every_count(llama: Path) -> None:
    seconds = engine(llama).profile((1, 3, 5), context=64, repeats=3)
    assert sorted(seconds) == [1, 3, 5]
    assert all(value > 0 for value in seconds.values())


def test_profile_gives_each_sequence_blocks_of_its_own(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = engine(llama)
    seen: list[list[Chunk]] = []
    run = target.run

    def spy(chunks: list[Chunk]) -> list[Verdict | None]:
        seen.append(chunks)
        return run(chunks)

    monkeypatch.setattr(target, "run", spy)
    seconds = target.profile((1, 3), context=40, repeats=1, sequences=4)
    assert sorted(seconds) == [1, 3]
    for chunks in seen:
        assert len(chunks) == 4
        blocks = [block for chunk in chunks for block in chunk.blocks]
        assert len(set(blocks)) == len(blocks)
        assert all(chunk.start == 40 and chunk.drafts == len(chunk.ids) - 1 for chunk in chunks)


def test_profile_says_when_so_many_sequences_have_no_room(llama: Path) -> None:
    with pytest.raises(ValueError, match="no room for 3 tokens of each of 100000 sequences"):
        engine(llama).profile((1, 3), context=40, sequences=100_000)


def test_a_small_cache_still_holds_the_longest_sequence(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = engine(llama, kv_cache_bytes=1)
    assert target.cache.num_blocks * target.cache.block_size >= target.model.max_model_len
    assert "hold less than one sequence" in caplog.text


def test_compiled_layers_decode_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a model that the lean decoder does not serve; packed products stay opaque."""
    folder = _save("mistral-window", tmp_path_factory)
    target = engine(folder, compile=True)
    assert "compiled" in target.model.extra["forward"]
    want = reference(folder, PROMPT, 8)
    assert decode(target, PROMPT, 8, want[:4] + [1] * 4, [0]) == want


def test_model_facts(llama: Path) -> None:
    info = engine(llama, max_model_len=64).model
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (97, 64, (2,))
    assert (info.device, info.dtype, info.name) == ("cpu", "float32", "tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int3"}, "dtype 'int3': allowed are auto, bfloat16"),
        ({"max_model_len": 4096}, "max_model_len 4096: the model's own limit is 128"),
        ({"device": "cuda"}, "sees no CUDA device"),
        ({"device": "tpu9"}, "device 'tpu9'"),
    ],
)
def test_bad_options_are_named(llama: Path, changes: dict[str, object], message: str) -> None:
    if torch.cuda.is_available() and changes.get("device") == "cuda":
        changes = {"device": "cuda:99"}
        message = "cuda:99"
    with pytest.raises(ModelLoadError, match=message):
        engine(llama, **changes)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config.json"):
        load(str(tmp_path), resolve_device("cpu"), "auto", None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="model folder"):
        load(str(tmp_path), resolve_device("cpu"), "auto", None)
