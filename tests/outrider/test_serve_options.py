"""Options of `serve`: the command line over the file over the defaults; words for wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.tools.parsers import Notation
from outrider.config import DEFAULT_SPECULATION
from outrider.errors import InputError
from outrider.serve_options import ServeOptions, merge_options

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "serve.yaml"
        path.write_text(text)
        return path

    return write


def refusal(given: dict[str, object], file: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        merge_options(given, file)
    return str(caught.value)


def test_defaults() -> None:
    options = merge_options({}, None)
    assert (options.host, options.port, options.log_level) == ("127.0.0.1", 8000, "info")
    assert options.per_request_spec_decode_metrics == "summary"
    assert options.speculation() == DEFAULT_SPECULATION


def test_command_line_wins_over_the_file(write: Write) -> None:
    file = write("model: m\nport: 9000\nmax-num-seqs: 8\nno_compile: true\n")
    options = merge_options({"port": 9001}, file)
    assert (options.model, options.port, options.max_num_seqs) == ("m", 9001, 8)
    assert options.no_compile


def test_file_takes_a_mapping_or_a_list(write: Write) -> None:
    file = write("speculative-config:\n  method: ngram\n  num-speculative-tokens: 3\n")
    (config,) = merge_options({}, file).speculation()
    assert (config.method, config.num_speculative_tokens) == ("ngram", 3)
    file = write(
        "speculative_config:\n- {method: ngram, num_speculative_tokens: 3}\n- method: suffix\n"
    )
    assert [c.method for c in merge_options({}, file).speculation()] == ["ngram", "suffix"]


def test_file_knows_the_second_name_of_an_option(write: Write) -> None:
    options = merge_options({}, write("num-speculative-tokens: 3\n"))
    assert [config.num_speculative_tokens for config in options.speculation()] == [3, 3]
    text = refusal({}, write("num-speculative-tokens: 3\nspec-tokens: 3\n"))
    assert "spec_tokens is the same option; give it once" in text


def test_escaped_json_in_the_file_shows_the_mapping(write: Write) -> None:
    file = write("""speculative-config: '{"method": "suffix"}'\n""")
    text = refusal({}, file)
    assert "JSON escaped into a string" in text
    assert text.endswith('speculative-config:\n  method: "suffix"')


def test_off_on_the_command_line_overrules_the_file(write: Write) -> None:
    file = write("speculative-config: {method: suffix}\n")
    assert merge_options({"no_speculation": True}, file).speculation() == ()
    both = merge_options({"no_speculation": True, "spec_tokens": 2}, file)
    with pytest.raises(InputError, match="--no-speculation"):
        both.speculation()


@pytest.mark.parametrize(
    ("key", "value"), [("draft_device", "cpu"), ("draft_kv_cache_memory_bytes", 1)]
)
def test_a_draft_models_options_need_one(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^--{key.replace('_', '-')}: {value!r}: nothing drafts"):
        merge_options({key: value}, None).speculation()
    drafting = {"spec_model": "org/x", "spec_tokens": 3}
    assert merge_options({key: value, **drafting}, None).speculation()


GOOD: dict[str, tuple[object, ...]] = {
    "port": (1, 65535),
    "max_model_len": (1, 8192),
    "max_num_seqs": (1, 256),
    "max_num_batched_tokens": (64, 8192),
    "max_waiting_requests": (1, 100_000),
    "max_logprobs": (-1, 0, 20, 50_000),
    "enable_prefix_caching": (True, False),
    "prefill_stall_ms": (0, 12.5, 60_000),
    "kv_cache_memory_bytes": (1, 1 << 40),
    "threads": (1, 2),
    "dtype": ("auto", "float32", "bfloat16"),
    "device": ("auto", "cpu", "cuda"),
    "quantization": ("none", "int8", "fp8"),
    "batch_invariant": (True, False),
    "served_model_name": ("x",),
    "draft_deadline_ms": (0, 2.5, 60_000),
    "draft_device": ("auto", "cpu", "cuda", "cuda:1"),
    "draft_kv_cache_memory_bytes": (1, 1 << 40),
    "per_request_spec_decode_metrics": ("none", "summary", "detailed"),
    "tool_call_parser": tuple(notation.value for notation in Notation),
    "log_level": ("debug", "info", "warning", "error"),
    "enforce_eager": (True, False),
    "max_captured_prefill_tokens": (0, 64, 512),
    "no_compile": (True, False),
    "enable_force_include_usage": (True, False),
}
BAD: dict[str, tuple[object, ...]] = {
    "port": (0, -1, 65536, "8000", True, 1.5),
    "max_model_len": (0, -5, "many"),
    "max_num_seqs": (0, 2.5),
    "max_num_batched_tokens": (0, "512"),
    "max_waiting_requests": (0, "all"),
    "max_logprobs": (-2, 2.5, "20"),
    "enable_prefix_caching": ("on", 1),
    "prefill_stall_ms": (-1, 60_001, "100"),
    "kv_cache_memory_bytes": (0, "1GB"),
    "threads": (0, -2),
    "dtype": ("float16", "", 16),
    "device": ("tpu", "cuda:1"),
    "served_model_name": ("", 3),
    "draft_deadline_ms": (-1, 60_001, "10", float("nan")),
    "draft_device": ("", "tpu", "cuda:", "cuda:x", 1),
    "draft_kv_cache_memory_bytes": (0, "1GB"),
    "per_request_spec_decode_metrics": ("all", True),
    "tool_call_parser": ("llama4", None),
    "log_level": ("INFO", "trace", ""),
    "quantization": ("", "int4", "INT8", 8, True),
    "batch_invariant": ("yes", 1),
    "enforce_eager": ("yes", 1),
    "max_captured_prefill_tokens": (-1, 1.5, "all"),
    "no_compile": ("yes", 1),
    "enable_force_include_usage": ("no",),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in GOOD.items() for value in values]
)
def test_allowed_values(key: str, value: object) -> None:
    assert getattr(merge_options({key: value}, None), key) == value


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in BAD.items() for value in values]
)
def test_wrong_values_name_the_option(key: str, value: object) -> None:
    text = refusal({key: value})
    assert text.startswith(f"--{key.replace('_', '-')}: {value!r}: ")
    assert "\n" not in text


def test_a_step_has_a_token_for_each_sequence(write: Write) -> None:
    assert merge_options({"max_num_batched_tokens": 1, "max_num_seqs": 1}, None)
    words = " is less than --max-num-seqs ("
    assert f"--max-num-batched-tokens: 63{words}64)" in refusal({"max_num_batched_tokens": 63})
    assert f"--max-num-batched-tokens: 512{words}513)" in refusal({"max_num_seqs": 513})
    file = write("max-num-seqs: 600\n")
    assert f"512{words}600)" in refusal({}, file)
    assert merge_options({"max_num_batched_tokens": 600}, file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("port: 0\n", "serve.yaml: port: 0: "),
        ("prot: 8000\n", "unknown option 'prot'; did you mean port?"),
        ("- 1\n", "must hold options as `name: value` lines"),
        ("a: [\n", "is not YAML"),
        ("port: 1\nport: 2\n", "is not YAML: port is given twice"),
        ("speculative-config: {method: ngram, method: suffix}\n", "method is given twice"),
        ("max-num-seqs: 1\nmax_num_seqs: 2\n", "max_num_seqs is given twice"),
    ],
)
def test_wrong_files(write: Write, content: str, words: str) -> None:
    text = refusal({}, write(content))
    assert text.startswith("--config: ")
    assert words in text


def test_missing_and_empty_files(write: Write, tmp_path: Path) -> None:
    assert "there is no file" in refusal({}, tmp_path / "no.yaml")
    assert merge_options({}, write("")) == ServeOptions()
