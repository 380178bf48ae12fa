"""`outrider proposer` with a draft model: options become settings, or one line and exit code 2."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import proposer_service.server
from outrider import cli
from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.settings import ProposerSettings

DRAFT = ("--method", "draft_model", "--model", "org/draft")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ProposerSettings]:
    """What a proposer would be started with, by its options."""

    def start(*options: str) -> ProposerSettings:
        given: list[ProposerSettings] = []
        monkeypatch.setattr(proposer_service.server, "run", given.append)
        listen = f"unix:{tmp_path / 'p'}"
        monkeypatch.setattr(sys, "argv", ["outrider", "proposer", "--listen", listen, *options])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert not caught.value.code
        (settings,) = given
        return settings

    return start


def test_the_defaults(started: Callable[..., ProposerSettings]) -> None:
    settings = started(*DRAFT)
    assert settings.method == "draft_model"
    assert settings.max_draft_tokens == 32
    assert settings.draft_model == DraftModelSettings("org/draft")
    assert started(*DRAFT[2:]) == settings
    assert started("--method", "ngram").draft_model is None


def test_every_option_arrives(started: Callable[..., ProposerSettings]) -> None:
    expected = DraftModelSettings(
        model="org/draft",
        device="cuda:1",
        dtype="float32",
        max_model_len=512,
        quantization="int8",
        revision="v2",
        enforce_eager=True,
        draft_sample_method="greedy",
        kv_cache_memory_bytes=1 << 20,
    )
    placed = ("--device=cuda:1", "--dtype=float32", f"--kv-cache-memory-bytes={1 << 20}")
    by_options = started(
        *DRAFT,
        *placed,
        *("--max-model-len=512", "--quantization=int8", "--revision=v2", "--enforce-eager"),
        *("--draft-sample-method=greedy", "--num-speculative-tokens=5"),
    )
    assert (by_options.draft_model, by_options.max_draft_tokens) == (expected, 5)
    by_json = started(
        "-sc",
        '{"method": "draft_model", "model": "org/draft", "max_model_len": 512, "quantization": '
        '"int8", "revision": "v2", "enforce_eager": true, "draft_sample_method": "greedy", '
        '"num_speculative_tokens": 5, "parallel_drafting": false}',
        *placed,
    )
    assert by_json == by_options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "draft_model"), "method 'draft_model' requires model"),
        ((*DRAFT, "--prompt-lookup-max", "3"), "prompt_lookup_max (3) belongs to method 'ngram'"),
        (
            (*DRAFT, "--suffix-decoding-max-spec-factor", "2"),
            "suffix_decoding_max_spec_factor (2.0) belongs to method 'suffix'",
        ),
        (("--method", "suffix", "--model", "x"), "model ('x') belongs to method 'draft_model'"),
        (("--method", "ngram", "--revision", "x"), "revision ('x') belongs to method 'draft_model"),
        (("--method", "ngram", "--enforce-eager"), "enforce_eager (True) belongs to method 'draft"),
        (("--method", "ngram", "--device", "cpu"), "--device: belongs to method 'draft_model'"),
        (
            ("-sc", '{"method": "suffix"}', "--dtype=auto", "--kv-cache-memory-bytes=9"),
            "--dtype, --kv-cache-memory-bytes: belongs to method 'draft_model'",
        ),
        (
            ("-sc", '{"model": "x", "num_speculative_tokens": 1}', "--revision", "y"),
            "--revision: cannot be combined with --speculative-config",
        ),
        ((*DRAFT, "--device", "tpu"), "--device: 'tpu' is not one of auto, cpu, cuda, cuda:N"),
        ((*DRAFT, "--device", "cuda:"), "--device: 'cuda:' is not one of"),
        ((*DRAFT, "--dtype", "half"), "--dtype: 'half' is not one of auto, float32, bfloat16"),
        ((*DRAFT, "--max-model-len", "1"), "max_model_len: 1: input should be greater than or"),
        ((*DRAFT, "--quantization", "awq"), "quantization: 'awq': input should be 'none', 'int8'"),
        ((*DRAFT, "--draft-sample-method", "x"), "draft_sample_method: 'x': input should be"),
        (("--model", "org/eagle-x"), "method 'eagle', which is what model 'org/eagle-x' means"),
    ],
)
def test_wrong_options_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["outrider", "proposer", "--listen", "unix:p", *options])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_an_installation_without_torch_says_which_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["outrider", "proposer", "--listen", "unix:p", *DRAFT])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "of the container images proposer-model has it" in capsys.readouterr().err
