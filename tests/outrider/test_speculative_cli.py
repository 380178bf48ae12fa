"""Speculation on the command line and in YAML, of `serve` and of `verifier`: one line, exit code 2.

The model is never there: what is told of the configuration is told before one is looked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import cli
from outrider.commands.config_file import read_defaults
from outrider.commands.verifier import verifier
from outrider.errors import InputError

Run = Callable[..., tuple[int, str]]
SERVE = ("serve", "no-such-model")
VERIFIER = ("verifier", "no-such-model", "--listen=unix:v", "--proposer=unix:p")
BOTH = (SERVE, VERIFIER)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command line; its exit code and stderr."""
    monkeypatch.setenv("OUTRIDER_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        assert out == ""
        return int(caught.value.code or 0), err

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "options.yaml"
        path.write_text(text)
        return str(path)

    return write


WRONG = [
    ({"method": "ngram"}, "method 'ngram' requires num_speculative_tokens"),
    ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens: 0: "),
    ({"method": "ngram", "num_speculative_tokens": 129}, "num_speculative_tokens: 129: "),
    ({"method": "sufix"}, "did you mean suffix?"),
    ({"method": "eagle3", "model": "x/y"}, "method 'eagle3' is not served yet by Outrider"),
    ({"model": "x/eagle-y"}, "which is what model 'x/eagle-y' means, is not"),
    ({"model": "x/y"}, "method 'draft_model' requires num_speculative_tokens"),
    ({"method": "draft_model", "num_speculative_tokens": 3}, "method 'draft_model' requires model"),
    ({"method": "suffix", "revision": "v1"}, "belongs to method 'draft_model'; it means nothing"),
    ({"method": "suffix", "prompt_lookup_max": 3}, "it means nothing for 'suffix'"),
    ({"method": "suffix", "temperature": 0.5}, "is a sampling parameter: send it with the request"),
    ({"method": "suffix", "top_p": 0.5}, "is a sampling parameter: send it with the request"),
    ({"method": "suffix", "target_model_config": {}}, "target_model_config is internal"),
    ({"method": "suffix", "disable_by_batch_size": 4}, "num_speculative_tokens_per_batch_size"),
    ({"method": "suffix", "tensor_parallel_size": 1}, "draft_tensor_parallel_size"),
    ({"method": "suffix", "metod": 1}, "unknown key 'metod'; did you mean method?"),
    ({"method": "suffix", "rejection_sample_method": "synthetic"}, "it accepts by coin flips"),
    ({"method": "suffix", "num_speculative_tokens_per_batch_size": [[2, 4, 1]]}, "start at 1"),
    ({"method": "suffix", "enforce_eager": True}, "the target's is the option --enforce-eager"),
    ([], "the list is empty"),
    ("ngram", "is a string, not an object"),
]


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
@pytest.mark.parametrize(("config", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_configs_are_one_line(
    run: Run, command: tuple[str, ...], config: object, words: str
) -> None:
    for option in ("-sc", "--speculative-config"):
        code, err = run(*command, option, json.dumps(config))
        assert code == 2
        assert err.startswith("error: --speculative-config: ")
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-sc", "{"), "--speculative-config: not JSON"),
        (("-sc", "null"), "--speculative-config: null is not an object"),
        (("-sc", ""), "--speculative-config: not JSON"),
        (("--spec-tokens", "many"), "--spec-tokens: 'many' is not a whole number; write one from"),
        (("--spec-tokens", "3.5"), "--spec-tokens: '3.5' is not a whole number"),
        (("--spec-tokens", "129"), "129: "),
        (("--spec-tokens", "-1"), "-1: "),
        (("-sc", '{"method":"suffix","method":"ngram"}'), "'method' is given twice"),
        (("--spec-method", "mtp"), "--spec-method: method 'mtp' is not served yet"),
        (("--spec-method", "ngram", "--spec-tokens", "0"), "num_speculative_tokens: 0"),
        (("--spec-model", "org/eagle-x"), "method 'eagle', which is what model 'org/eagle-x'"),
        (("-sc", '{"method":"suffix"}', "--spec-method", "suffix"), "sets method too; give it"),
        (("-sc", '[{"method":"suffix"}]', "--spec-method", "suffix"), "unless that is one object"),
    ],
)
def test_wrong_shortcuts_are_one_line(
    run: Run, command: tuple[str, ...], options: tuple[str, ...], words: str
) -> None:
    code, err = run(*command, *options)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
@pytest.mark.parametrize(
    "options",
    [
        ("-sc", '{"method": "ngram", "num_speculative_tokens": 3}'),
        ("--spec-method", "ngram", "--spec-tokens", "3"),
        ("--spec-model", "[ngram]", "--spec-tokens", "3"),
        ("-sc", '{"num-speculative-tokens": 3}', "--spec-method", "ngram"),
    ],
)
def test_good_configs_come_as_far_as_the_model(
    run: Run, command: tuple[str, ...], options: tuple[str, ...]
) -> None:
    code, err = run(*command, *options)
    assert code == 2
    assert err.startswith("error: MODEL: there is no folder 'no-such-model'")


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
def test_yaml_takes_a_mapping(
    run: Run, write: Callable[[str], str], command: tuple[str, ...]
) -> None:
    good = write("speculative-config:\n  method: ngram\n  num-speculative-tokens: 3\n")
    assert "MODEL: there is no folder" in run(*command, "--config", good)[1]
    bad = write("speculative_config:\n  method: ngram\n  num_speculative_tokens: 0\n")
    code, err = run(*command, "--config", bad)
    assert (code, err.count("\n")) == (2, 1)
    assert "num_speculative_tokens: 0" in err


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
@pytest.mark.parametrize("text", ["&a [*a]", "&a {method: *a}", "&a {method: suffix, x: [*a]}"])
def test_a_value_that_holds_itself_is_one_line(
    run: Run, write: Callable[[str], str], command: tuple[str, ...], text: str
) -> None:
    file = write(f"speculative-config: {text}\n")
    code, err = run(*command, "--config", file)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: --config: {file} is not YAML: ")
    assert "recursive" in err


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
def test_an_escaped_list_in_yaml_is_answered_with_the_list(
    run: Run, write: Callable[[str], str], command: tuple[str, ...]
) -> None:
    lines = (
        'speculative-config:\n- method: "ngram"\n  num_speculative_tokens: 3\n- method: "suffix"\n'
    )
    file = write(
        """speculative-config: '[{"method": "ngram", "num_speculative_tokens": 3}, """
        """{"method": "suffix"}]'\n"""
    )
    code, err = run(*command, "--config", file)
    assert code == 2
    assert err.endswith(f"JSON escaped into a string; write it as a mapping:\n{lines}")
    # What is shown is what may be written.
    assert "MODEL: there is no folder" in run(SERVE[0], SERVE[1], "--config", write(lines))[1]


@pytest.mark.parametrize("command", BOTH, ids=["serve", "verifier"])
def test_escaped_json_in_yaml_is_answered_with_the_mapping(
    run: Run, write: Callable[[str], str], command: tuple[str, ...]
) -> None:
    file = write("""speculative-config: '{"method": "ngram", "num_speculative_tokens": 3}'\n""")
    code, err = run(*command, "--config", file)
    assert code == 2
    assert f"--config: {file}: speculative" in err
    assert "JSON escaped into a string; write it as a mapping:\nspeculative-config:\n" in err
    assert err.endswith('  method: "ngram"\n  num_speculative_tokens: 3\n')


def test_a_step_has_a_token_for_each_sequence(run: Run) -> None:
    for command in BOTH:
        code, err = run(*command, "--max-num-batched-tokens", "3", "--max-num-seqs", "4")
        assert (code, err.count("\n")) == (2, 1)
        assert "--max-num-batched-tokens: 3 is less than --max-num-seqs (4)" in err


def test_the_verifier_needs_an_address_for_each_entry(run: Run) -> None:
    alone = ("verifier", "x", "--listen=unix:v", "-sc", '{"method": "suffix"}')
    assert "give --proposer ADDRESS for each proposer, or use outrider serve" in run(*alone)[1]
    code, err = run(*VERIFIER, "-sc", '[{"method": "suffix"}, {"method": "suffix"}]')
    assert code == 2
    assert "it describes 2 proposers and --proposer gives 1" in err


def test_the_verifiers_own_options_and_keys_are_given_once(run: Run) -> None:
    config = '{"method": "suffix", "enable_adaptive_verification": true}'
    code, err = run(*VERIFIER, "-sc", config, "--no-enable-adaptive-verification")
    assert code == 2
    assert "--enable-adaptive-verification: --speculative-config sets" in err


def test_a_verifiers_file_brings_what_its_command_line_would(write: Callable[[str], str]) -> None:
    file = write(
        "model: m\nlisten: unix:v\nproposer: [unix:a, unix:b]\nmax-num-seqs: 8\n"
        "draft-deadline-ms: 5\nenable-prefix-caching: false\nno_compile: true\nthreads: null\n"
        "spec-tokens: 3\nnum-speculative-tokens-per-batch-size: [[1, 4, 2]]\n"
        "speculative-config: {method: suffix}\ncache-dir: there\n"
    )
    assert read_defaults(verifier, Path(file)) == {
        "model": "m",
        "listen": "unix:v",
        "proposer": ["unix:a", "unix:b"],
        "max_num_seqs": 8,
        "draft_deadline_ms": 5,
        "enable_prefix_caching": False,
        "no_compile": True,
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": "[[1, 4, 2]]",
        "speculative_config": '{"method": "suffix"}',
        "cache_dir": "there",
    }
    assert read_defaults(verifier, Path(write("proposer: unix:a\n"))) == {"proposer": ["unix:a"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seqs: 0", "max_num_seqs: 0: input should be greater than or equal to 1"),
        ("max-num-seqs: 2.5", "max_num_seqs: 2.5: input should be a valid integer"),
        ("max-num-seqs: true", "max_num_seqs: True: input should be a valid integer"),
        ("max-num-seqs: '8'", "max_num_seqs: '8': input should be a valid integer"),
        ("no-compile: 1", "no_compile: 1: input should be a valid boolean"),
        ("device: 3", "device: 3: input should be a valid string"),
        ("proposer: {a: 1}", "proposer: {'a': 1}: input should be a valid list"),
        ("draft-deadline-ms: -1", "draft_deadline_ms: -1: input should be greater"),
        ("max-num-seq: 3", "unknown option 'max-num-seq'; did you mean max_num_seqs?"),
        ("runtime-dir: x", "unknown option 'runtime-dir'"),
        ("config: x", "unknown option 'config'"),
        ("spec-tokens: 3\nnum-speculative-tokens: 3", "it is given twice, under two names"),
        ("num-speculative-tokens-per-batch-size: '[[1, 4, 2]]'", "write it as YAML, without"),
        ("speculative-config: ngram", "is a string, not an object"),
    ],
)
def test_wrong_values_in_a_verifiers_file(
    run: Run, write: Callable[[str], str], text: str, words: str
) -> None:
    file = write(text + "\n")
    with pytest.raises(InputError) as caught:
        read_defaults(verifier, Path(file))
    assert str(caught.value).startswith(f"--config: {file}: ")
    assert words in str(caught.value)
    code, err = run(*VERIFIER, "--config", file)
    assert (code, err.count("\n")) == (2, 1)


def test_the_command_line_wins_over_a_verifiers_file(run: Run, write: Callable[[str], str]) -> None:
    file = write("model: no-such\nlisten: unix:v\nproposer: unix:p\ndevice: tpu\n")
    assert "--device: 'tpu' is not one of" in run("verifier", "--config", file)[1]
    code, err = run("verifier", "--config", file, "--device", "cpu")
    assert (code, err[:45]) == (2, "error: MODEL: there is no folder 'no-such'; w")
    assert "'other'" in run("verifier", "other", "--config", file, "--device=cpu")[1]
