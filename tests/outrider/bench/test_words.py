"""What users of `vllm bench` type is taken, or refused with what to do instead."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from outrider.commands import bench_serving, bench_words
from tests.outrider.bench.fake_server import FakeServer, Script
from tests.outrider.bench.test_commands import Run, fake, outrider, url

__all__ = ["fake", "outrider", "url"]

# Every option of `vllm bench serve`, `latency`, `throughput` and `sweep serve` of 0.29.0 that
# these commands do not take.
ELSEWHERE = re.findall(
    r"--\S+",
    """
    --tokenizer --tokenizer-mode --skip-tokenizer-init --trust-remote-code --lora-modules
    --lora-assignment --lora-path --profile --plot-timeline --timeline-itl-thresholds
    --plot-dataset-stats --self-timed --probe-request-rate --request-id-prefix
    --chat-template-kwargs --skip-chat-template --use-beam-search --no-stream --n
    --disable-detokenize --async-engine --prequeue-requests --dataset --enable-multimodal-chat
    --prefix-len --hf-name --hf-split --hf-subset --bfcl-categories --speed-bench-dataset-subset
    --speed-bench-category --speed-bench-output-len --random-input-len --random-output-len
    --random-range-ratio --random-prefix-len --sonnet-input-len --sonnet-output-len
    --prefix-repetition-prefix-len --timed-trace-label-timestamp --asr-max-audio-len-sec
    --blazedit-min-distance --serve-params --bench-params --bench-cmd --link-vars --workload-var
    --workload-iters --after-bench-cmd --resume --show-stdout
    """,
)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_of_vllm_s_that_is_not_ours_says_what_to_do(outrider: Run, name: str) -> None:
    for written in (name, f"{name}=3", name.replace("-", "_").replace("__", "--", 1)):
        code, _, err = outrider("serve", written, "3")
        assert code == 2
        assert err.startswith(f"error: {name}: ")
        assert len(err.splitlines()) == 1 and len(err) > len(name) + 20


def test_a_command_line_of_vllm_bench_serve_runs_as_it_is(
    outrider: Run, url: str, fake: FakeServer, tmp_path: Path
) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    line = (
        f"serve --backend openai-chat --host {host} --port {port} --endpoint /v1/chat/completions "
        "--model org/weights --served-model-name toy --dataset_name outrider --num_prompts 3 "
        "--no-oversample --max-concurrency 1 --ignore-eos --temperature 0 --logprobs 2 "
        "--goodput ttft:9000 e2el:9000 --metadata gpu=none site=lab --header X-A=1 X-B=2 "
        "--ramp-up-strategy exponential --ramp-up-start-rps 500 --ramp-up-end-rps 900 "
        "--burstiness inf --save-result --result-filename r.json --result-dir"
    )
    code, out, err = outrider(*shlex.split(line), str(tmp_path))
    assert code == 0, err
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["metadata"] == {"gpu": "none", "site": "lab"}
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert (result["ramp_up_strategy"], result["ramp_up_end_rps"]) == ("exponential", 900)
    assert result["burstiness"] == "inf"
    assert "1 client, 500 to 900 requests/s" in out
    body = fake.bodies[-1]
    assert (body["model"], body["logprobs"], body["top_logprobs"]) == ("toy", True, 2)
    assert (fake.headers[-1]["x-a"], fake.headers[-1]["x-b"]) == ("1", "2")


def test_the_endpoint_says_which_kind_of_request(outrider: Run, url: str, fake: FakeServer) -> None:
    code, _, err = outrider(
        *("serve", "--base-url", url, "--endpoint", "/v1/completions", "--num-prompts", "2"),
        *("--logprobs", "1", "--no-baseline"),
    )
    assert code == 0, err
    assert fake.bodies[-1]["logprobs"] == 1
    assert "prompt" in fake.bodies[-1]


def test_too_few_prompts_need_not_be_sent_again(
    outrider: Run, url: str, fake: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    code, out, err = outrider(
        *("serve", "--base-url", url, "--dataset-name", "custom", "--dataset-path", str(path)),
        *("--num-prompts", "5", "--no-oversample", "--num-warmups", "0", "--no-baseline"),
    )
    assert code == 0, err
    assert len(fake.bodies) == 1 + 2
    assert "more than once" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve --host h --base-url http://h", "--host: --base-url says where the server is"),
        ("serve --port 80 --base-url http://h", "--port: --base-url says where the server is"),
        ("serve --base-url http://h:99999999", "--base-url: 'http://h:99999999' is not a URL"),
        ("serve --host http://h", "--host: 'http://h' is not a host"),
        ("serve --endpoint v1/completions", "--endpoint: 'v1/completions' is not a path"),
        ("serve --endpoint /v1/embeddings", "--endpoint: '/v1/embeddings' ends neither in"),
        (
            "serve --backend openai --endpoint /v1/chat/completions",
            "--endpoint: '/v1/chat/completions' is not of --backend openai",
        ),
        ("serve --ramp-up-start-rps 1", "--ramp-up-start-rps: it needs --ramp-up-strategy"),
        ("serve --ramp-up-strategy steep", "--ramp-up-strategy: 'steep' is not one of linear, exp"),
        ("serve --ramp-up-strategy linear", "--ramp-up-start-rps: it is missing"),
        (
            "serve --ramp-up-strategy linear --ramp-up-start-rps 0 --ramp-up-end-rps 2",
            "--ramp-up-start-rps: 0; --ramp-up-strategy needs a number above 0",
        ),
        (
            "serve --ramp-up-strategy linear --ramp-up-start-rps 3 --ramp-up-end-rps 2",
            "--ramp-up-end-rps: 2 is below --ramp-up-start-rps 3",
        ),
        (
            "serve --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 "
            "--request-rate 4",
            "--request-rate: with --ramp-up-strategy",
        ),
        ("serve --save-detailed", "--save-detailed: nothing is kept without --save-result"),
        ("serve --result-filename r", "--result-filename: nothing is kept without --save-result"),
        ("serve --dataset-name random", "--dataset-name: 'random' is vLLM's and not here"),
        ("serve --dataset-name hf", "--dataset-name: 'hf' is vLLM's and not here"),
        ("sweep serve --dry-run", "sweep serve: there is one sweep, without 'serve'"),
        ("sweep --serve-cmd x --port 3", "--port: with --serve-cmd the server is started"),
        ("latency --model m --port 3", "--port: the address of the server that is started"),
        ("latency --base-url http://h --dtype bfloat16", "--dtype: the server at --base-url runs"),
    ],
)
def test_what_does_not_fit_is_one_line(outrider: Run, words: str, message: str) -> None:
    code, _, err = outrider(*shlex.split(words))
    assert code == 2
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1


def test_files_are_tried_before_anything_is_measured(
    outrider: Run, url: str, fake: FakeServer, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    (tmp_path / "file").write_text("")
    for words, message in (
        (("serve", "--html", folder), f"--html: {folder} is a folder; name a file"),
        (
            ("serve", "--save-result", "--result-dir", folder, "--result-filename", "file/r.json"),
            f"--result-filename: the folder {folder}/file cannot be made",
        ),
        (("latency", "--output-json", folder), f"--output-json: {folder} is a folder"),
    ):
        code, _, err = outrider(*words, "--base-url", url)
        assert code == 2
        assert err.startswith(f"error: {message}")
    assert fake.bodies == []


def test_a_seed_goes_with_a_temperature_wherever_it_is_given(
    outrider: Run, url: str, fake: FakeServer
) -> None:
    for words in (("--temperature", "0.5"), ("--extra-body", '{"temperature": 0.5}')):
        code, _, err = outrider(
            *("serve", "--base-url", url, "--num-prompts", "1", "--seed", "40", "--no-baseline"),
            *words,
        )
        assert code == 0, err
        assert fake.bodies[-1]["seed"] == 40


@pytest.mark.parametrize(
    ("ours", "theirs", "sent"), [("a,b", "c", "a"), ("", "c", "c"), ("a", "", "a")]
)
def test_the_key_of_our_own_server_goes_before_openai_s(
    outrider: Run,
    url: str,
    fake: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    ours: str,
    theirs: str,
    sent: str,
) -> None:
    monkeypatch.setenv("OUTRIDER_API_KEY", ours)
    monkeypatch.setenv("OPENAI_API_KEY", theirs)
    assert outrider("serve", "--base-url", url, "--num-prompts", "1")[0] == 0
    assert fake.headers[-1]["authorization"] == f"Bearer {sent}"


def test_a_draft_that_none_accepted_explains_no_difference(
    outrider: Run, url: str, fake: FakeServer
) -> None:
    fake.script_of = lambda body: Script(chunks=((0, 1),) * 6, steps=((4, 0),))
    code, out, _ = outrider("serve", "--base-url", url, "--num-prompts", "2")
    assert code == 0
    assert "no draft token was accepted" in " ".join(out.split())


def test_engine_options_need_no_dashes_before_them(
    outrider: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections.abc import Iterator
    from contextlib import contextmanager

    asked: list[Any] = []

    @contextmanager
    def serving(model: str, options: Any, timeout_s: float) -> Iterator[str]:
        asked.append((model, list(options)))
        yield url

    monkeypatch.setattr(bench_serving, "serving", serving)
    code, _, err = outrider(
        *("latency", "--model", "m", "--dtype", "bfloat16", "--batch-size", "2", "--no-compile"),
        *("--max_model_len=64", "--num-iters", "1", "--spec-tokens", "4", "--", "--threads", "2"),
    )
    assert code == 0, err
    assert asked == [
        (
            "m",
            [
                *("--dtype", "bfloat16", "--no-compile", "--max-model-len=64"),
                *("--spec-tokens", "4", "--threads", "2"),
            ],
        )
    ]
    code, _, err = outrider("latency", "--model", "m", "--dtpye", "bfloat16")
    assert code == 2 and "No such option: --dtpye" in err


def test_a_value_that_reads_like_a_name_is_a_value(outrider: Run) -> None:
    code, out, _ = outrider("sweep", "--label", "serve", "--dry-run", "--max-concurrency", "2")
    assert (code, out) == (0, "2 clients\tthe server’s K\n")


def test_no_name_is_refused_that_a_command_takes() -> None:
    import typer

    from outrider.commands import bench

    group = typer.main.get_command(bench.app)
    commands = group.commands  # type: ignore[attr-defined]
    known = {option for command in commands.values() for option in _options(command)}
    assert not known & set(bench_words.NOT_HERE)


def _options(command: Any) -> set[str]:
    return {option for param in command.params for option in param.opts}
