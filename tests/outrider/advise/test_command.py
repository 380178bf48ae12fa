"""`outrider advise` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import cli

Run = Callable[..., tuple[int, str, str]]
LINE = {"prompt_token_ids": [1, 2, 3, 4] * 3, "output_token_ids": [1, 2, 3, 4] * 5}


@pytest.fixture
def advise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    monkeypatch.setenv("OUTRIDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", "advise", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    path = tmp_path / "traffic.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n" * 3)
    return str(path)


def test_a_table_and_a_sentence(advise: Run, traffic: str) -> None:
    code, out, err = advise(traffic, "--step-cost", "0.01")
    assert code == 0 and err == ""
    assert "3 requests, 36 prompt and 60 output tokens" in out
    for shown in ("ngram 2-5", "ngram 3-5", "suffix", "by position", "worth turning on"):
        assert shown in out
    assert '--speculative-config \'{"method":' in out


def test_a_pipe_gets_whole_tables_and_sentences(advise: Run, traffic: str) -> None:
    _, out, _ = advise(traffic, "--step-cost", "0.01", "-k", "4", "--sequences", "1,2,4,8,16")
    assert "…" not in out
    assert "speed │" not in out and "× 16" in out


@pytest.mark.parametrize(
    ("arguments", "environment", "sent"),
    [
        ((), {"OUTRIDER_API_KEY": "a,b", "OPENAI_API_KEY": "c"}, "a"),
        ((), {"OPENAI_API_KEY": "c"}, "c"),
        (("--api-key", "d"), {"OUTRIDER_API_KEY": "a"}, "d"),
        ((), {}, None),
    ],
)
def test_the_key_is_the_option_s_or_the_environment_s(
    advise: Run,
    traffic: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    sent: str | None,
) -> None:
    keys: list[str | None] = []

    def speaks(url: str, api_key: str | None) -> bool:
        keys.append(api_key)
        return False

    monkeypatch.setattr("outrider.advise.run.speaks_outrider", speaks)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert advise(traffic, "--url", "http://127.0.0.1:1", *arguments)[0] == 0
    assert keys == [sent]


def test_json_alone_on_standard_output(advise: Run, traffic: str) -> None:
    code, out, _ = advise(traffic, "--json", "-k", "4,2", "--window", "1", "--sequences", "8,1")
    found = json.loads(out)
    assert code == 0 and found["traffic"]["requests"] == 3
    assert [m["name"] for m in found["methods"]] == ["ngram 1", "suffix"]
    ks = [result["num_speculative_tokens"] for result in found["methods"][0]["results"]]
    assert ks == [2, 4]
    # The first number of sequences is the one the advice is for.
    assert list(found["advice"]["best"]) == ["8", "1"]


def test_suffix_options_reach_the_method(advise: Run, traffic: str) -> None:
    _, out, _ = advise(traffic, "--json", "--suffix-decoding-max-spec-factor", "0")
    suffix = json.loads(out)["methods"][-1]
    assert suffix["config"]["suffix_decoding_max_spec_factor"] == 0
    assert all(r["speculative_decoding"]["num_draft_tokens"] == 0 for r in suffix["results"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-k", "0"], "--num-speculative-tokens: '0'"),
        (["-k", "1,x"], "must be numbers from 1 to 128"),
        (["-k", "129"], "must be numbers from 1 to 128"),
        (["--sequences", "0"], "--sequences: '0'"),
        (["--window", "x"], "--window: 'x': must be MIN-MAX"),
        (["--window", "5-2"], "--window: '5-2': "),
        (["--step-cost", "much"], "--step-cost: 'much'"),
        (["--draft-wait-ms", "1"], "--draft-wait-ms: 1 ms can only be added to a cost in ms"),
        (["--model", "smollm3"], "--model: there is no folder 'smollm3'"),
        (["--proposer", "nowhere"], "--proposer: 'nowhere' is not an address"),
        (["--url", "nowhere"], "--url: 'nowhere' is not an address"),
        (["--live"], "--live: give --proposer"),
    ],
)
def test_wrong_options_are_one_line(
    advise: Run, traffic: str, arguments: list[str], told: str
) -> None:
    code, out, err = advise(traffic, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and told.replace("in ms", "in milliseconds") in err
    assert err.count("\n") == 1


def test_a_missing_file_is_one_line(advise: Run) -> None:
    code, _, err = advise("none.jsonl")
    assert (
        code == 2
        and err == "error: TRAFFIC: none.jsonl cannot be read: no such file or directory\n"
    )


def test_bad_lines_are_named_or_counted(advise: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{{\n")
    code, _, err = advise(str(path))
    assert code == 2 and "line 2: not JSON" in err
    code, out, _ = advise(str(path), "--skip-bad-lines")
    assert code == 0 and "1 bad lines skipped" in out


def test_a_known_models_tokenizer_folder_needs_no_weights(advise: Run, tmp_path: Path) -> None:
    from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer

    folder = tmp_path / "tokenizer"
    byte_level_tokenizer().save_pretrained(folder)
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"prompt": "the cat the cat", "output": " sat the cat sat"}))
    code, out, _ = advise(str(path), "--model", str(folder), "--json")
    assert code == 0 and json.loads(out)["traffic"]["output_tokens"] > 3


def test_ids_are_replayed_without_torch_or_a_tokenizer(traffic: str) -> None:
    program = (
        "import sys; from outrider import cli; sys.argv = ['outrider', 'advise', sys.argv[1], "
        "'--json']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "loaded = {'torch', 'transformers', 'gateway'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, traffic], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["traffic"]["requests"] == 3
