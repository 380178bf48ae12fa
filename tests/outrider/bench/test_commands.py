"""The commands as a user meets them, against a server on a real socket."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from outrider import cli
from outrider.commands import bench_serving
from tests.outrider.bench.fake_server import FakeServer, Script

Run = Callable[..., tuple[int, str, str]]

# Pauses of nothing: what these tests look at does not depend on time.
PLAIN = Script(chunks=((0, 1),) * 6)
DRAFTED = Script(chunks=((0, 1), (0, 3), (0, 2)), steps=((4, 2), (4, 1)))


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `outrider bench …`; its exit code, stdout and stderr."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", "bench", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def fake() -> FakeServer:
    def script(body: dict[str, Any]) -> Script:
        return PLAIN if body.get("speculative_decoding", {}).get("enabled") is False else DRAFTED

    return FakeServer(script_of=script)


@pytest.fixture
def url(fake: FakeServer) -> Iterator[str]:
    """The fake server, in a thread."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    server = uvicorn.Server(uvicorn.Config(fake.app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    listener.close()


def test_serve_measures_and_keeps_what_it_found(outrider: Run, url: str, tmp_path: Path) -> None:
    code, out, err = outrider(
        *("serve", "--base-url", url, "--num-prompts", "6", "--max-concurrency", "2"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"),
        *("--html", str(tmp_path / "r.html"), "--metadata", "gpu=none", "--label", "here"),
        *("--save-detailed", "--metric-percentiles", "50,95", "--header", "X-A=secret"),
    )
    assert code == 0, err
    assert "times as fast as without" in out
    assert "Per-position acceptance" in out
    assert "6/6" in err or "12/12" in err
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["kind"] == "serve"
    assert (result["model_id"], result["num_prompts"], result["backend"]) == (
        *("toy", 6, "openai-chat"),
    )
    assert result["completed"] == result["baseline"]["completed"] == 6
    assert result["total_output_tokens"] == 36
    assert result["spec_decode_acceptance_length"] == 2.5
    assert {"p50_ttft_ms", "p95_itl_ms", "mean_tpot_ms", "median_e2el_ms"} <= set(result)
    assert result["speedup"]["same_answers"] == 6
    assert (result["metadata"], result["label"]) == ({"gpu": "none"}, "here")
    assert result["servers"][0]["version"] == "9.9"
    assert len(result["requests"]) == 6
    assert "secret" not in json.dumps(result)
    assert "<svg" in (tmp_path / "r.html").read_text()

    code, out, err = outrider(
        "report", str(tmp_path / "r.json"), "--html", str(tmp_path / "again.html")
    )
    assert code == 0, err
    assert "Per-position acceptance" in out
    assert (tmp_path / "again.html").read_text() == (tmp_path / "r.html").read_text()


def test_serve_sends_what_it_was_told_to(
    outrider: Run, url: str, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = outrider
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    code, _, err = run(
        *("serve", "--base-url", f"{url}/v1", "--backend", "vllm", "--num-prompts", "1"),
        *("--output-len", "5", "--ignore-eos", "--temperature", "0.5", "--top-p", "0.9"),
        *("--num-speculative-tokens", "3", "--extra-body", '{"priority": 2}', "--no-progress"),
        *("--num-warmups", "0", "--seed", "40", "--no-baseline"),
    )
    assert code == 0, err
    body = fake.bodies[-1]
    assert (body["max_tokens"], body["ignore_eos"], body["priority"]) == (5, True, 2)
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 40)
    assert body["speculative_decoding"] == {"num_speculative_tokens": 3}
    assert fake.headers[-1]["authorization"] == "Bearer k"
    # The probe and the one prompt.
    assert len(fake.bodies) == 2


def test_sweep_writes_one_report(outrider: Run, url: str, tmp_path: Path) -> None:
    code, out, err = outrider(
        *("sweep", "--base-url", url, "--num-prompts", "4", "--max-concurrency", "1,2"),
        *("--num-speculative-tokens", "2,4", "--num-warmups", "1"),
        *("--output-dir", str(tmp_path), "--experiment-name", "e"),
    )
    assert code == 0, err
    assert sorted(p.name for p in (tmp_path / "e").iterdir()) == ["report.html", "sweep.json"]
    result = json.loads((tmp_path / "e" / "sweep.json").read_text())
    assert [(p["max_concurrency"], p["num_speculative_tokens"]) for p in result["points"]] == [
        *[(1, 2), (1, 4), (2, 2), (2, 4)],
    ]
    assert "Speed-up against the baseline" in out
    assert any("more than once" in note for note in result["points"][0]["notes"])
    assert (tmp_path / "e" / "report.html").read_text().count("<svg") == 3


def test_sweep_says_what_it_would_do(outrider: Run) -> None:
    code, out, _ = outrider("sweep", "--request-rate", "0.5,inf", "--dry-run")
    assert code == 0
    assert out.splitlines() == ["0.5 requests/s\tthe server’s K", "all at once\tthe server’s K"]


def test_sweep_starts_a_server_for_each_k(
    outrider: Run, url: str, fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from outrider.commands import bench_sweep

    events: list[str] = []

    @contextmanager
    def started(template: str, k: int | None, timeout_s: float) -> Iterator[str]:
        events.append(f"{template} {k}")
        yield url
        events.append("stopped")

    monkeypatch.setattr(bench_sweep, "started", started)
    # A note of each arm, so that its name is seen.
    fake.script_of = lambda body: Script(chunks=((0, 1),) * 6, steps=((4, 0),))
    code, _, err = outrider(
        *("sweep", "--serve-cmd", "x {port}", "--num-speculative-tokens", "2,3", "--no-html"),
        *("--num-prompts", "2", "--max-concurrency", "1", "--output-dir", str(tmp_path)),
    )
    assert code == 0, err
    assert events == ["x {port} 2", "stopped", "x {port} 3", "stopped"]
    (path,) = tmp_path.glob("*/sweep.json")
    points = json.loads(path.read_text())["points"]
    assert [(p["arm"], p["num_speculative_tokens"]) for p in points] == [("K=2", 2), ("K=3", 3)]
    assert [p["notes"][0][:5] for p in points] == ["K=2: ", "K=3: "]


def test_latency_is_of_whole_batches(outrider: Run, url: str, tmp_path: Path) -> None:
    code, out, err = outrider(
        *("latency", "--base-url", url, "--batch-size", "2", "--num-iters", "3"),
        *("--num-iters-warmup", "1", "--output-len", "6", "--input-len", "4"),
        *("--output-json", str(tmp_path / "l.json")),
    )
    assert code == 0, err
    assert "Avg latency: " in out
    result = json.loads((tmp_path / "l.json").read_text())
    assert len(result["latencies"]) == result["blocks"] == 3
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 3)
    assert set(result["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert result["speedup"]["latency"]["spread"] == "lowest and highest of 3 batches"
    assert result["settings"]["truncate_prompt_tokens"] == 4
    assert result["settings"]["ignore_eos"] is True


def test_throughput_says_vllm_s_line(outrider: Run, url: str, tmp_path: Path) -> None:
    code, out, err = outrider(
        *("throughput", "--base-url", url, "--num-prompts", "4"),
        *("--output-json", str(tmp_path / "t.json")),
    )
    assert code == 0, err
    assert "Throughput: " in out
    result = json.loads((tmp_path / "t.json").read_text())
    assert (result["num_requests"], result["total_num_tokens"]) == (4, 4 * 13)


def test_without_a_url_a_server_is_started(
    outrider: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    asked: list[Any] = []

    @contextmanager
    def serving(model: str, options: Any, timeout_s: float) -> Iterator[str]:
        asked.append((model, list(options)))
        yield url

    monkeypatch.setattr(bench_serving, "serving", serving)
    code, _, err = outrider(
        *("throughput", "--model", "toy-model", "--num-prompts", "1", "-sc", "{}"),
        *("--", "--threads", "2"),
    )
    assert code == 0, err
    assert asked == [("toy-model", ["--speculative-config={}", "--threads", "2"])]


def test_a_failed_request_is_shown_and_the_rest_measured(
    outrider: Run, url: str, fake: FakeServer
) -> None:
    seen: list[int] = []

    def script(body: dict[str, Any]) -> Script:
        if "cache_salt" not in body:
            return DRAFTED
        seen.append(1)
        return Script(status=503, error="overloaded") if len(seen) == 2 else DRAFTED

    fake.script_of = script
    code, out, _ = outrider("serve", "--base-url", url, "--num-prompts", "4")
    assert code == 0
    assert "1 of 4 requests failed" in out
    assert "HTTP 503: overloaded" in out


def test_no_server_is_one_line(outrider: Run, free_port: int) -> None:
    code, _, err = outrider("serve", "--base-url", f"http://127.0.0.1:{free_port}")
    assert code == 1
    assert err.splitlines()[-1].startswith(f"error: http://127.0.0.1:{free_port} cannot be reached")
    assert "Traceback" not in err


def test_a_wrong_model_is_one_line(outrider: Run, url: str) -> None:
    code, _, err = outrider("serve", "--base-url", url, "--model", "tox")
    assert code == 2
    assert "error: --model: 'tox' is not served" in err
    assert "it serves toy; did you mean toy?" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--dataset-name", "x"), "--dataset-name: 'x' is not one of"),
        (("serve", "--dataset-name", "gsm8k"), "--dataset-path: gsm8k needs its file"),
        (("serve", "--backend", "x"), "--backend: 'x' is not one of openai-chat"),
        (("serve", "--base-url", "x"), "--base-url: 'x' is not a URL"),
        (("serve", "--extra-body", "["), "--extra-body: '[' is not JSON"),
        (("serve", "--extra-body", "[]"), "--extra-body: '[]' is not a JSON object"),
        (("serve", "--goodput", "itl:5"), "--goodput: 'itl:5' is not NAME:MILLISECONDS"),
        (("serve", "--goodput", "ttft:-5"), "--goodput: 'ttft:-5'"),
        (("serve", "--metadata", "x"), "--metadata: 'x' is not KEY=VALUE"),
        (("serve", "--header", "=x"), "--header: '=x' is not KEY=VALUE"),
        (("serve", "--request-rate", "0"), "--request-rate: '0.0' is not above 0, or inf"),
        (("serve", "--burstiness", "0"), "--burstiness: 0 is not a number above 0"),
        (("serve", "--metric-percentiles", "101"), "'101' is not from 0 to 100"),
        (("serve", "--percentile-metrics", "x"), "'x' is not one of ttft, tpot, itl, gap, e2el"),
        (("sweep", "--max-concurrency", "1,x"), "--max-concurrency: 'x' is not a whole number"),
        (("sweep", "--max-concurrency", "1.5"), "'1.5' is not a whole number from 1"),
        (("sweep", "--num-speculative-tokens", "0"), "'0' is not a whole number from 1"),
        (("sweep", "--request-rate", "1", "--max-concurrency", "1"), "not both"),
        (("sweep", "--serve-cmd", "x", "--base-url", "http://h"), "started by this command"),
        (("latency",), "--model: which model?"),
        (("latency", "--base-url", "http://h", "--", "--threads", "2"), "--threads: the server at"),
        (("throughput", "--base-url", "http://h", "-sc", "{}"), "--speculative-config: the server"),
        (("report", "nowhere.json"), "RESULT: there is no file nowhere.json"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(
    outrider: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = outrider(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_missing_plots_are_told_before_anything_is_measured(
    outrider: Run, url: str, fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for arguments in (
        ("serve", "--html", str(tmp_path / "r.html")),
        ("sweep", "--output-dir", str(tmp_path)),
        ("latency", "--html", str(tmp_path / "r.html")),
    ):
        code, _, err = outrider(*arguments, "--base-url", url)
        assert code == 2
        assert "pip install 'outrider[bench]'" in err
    assert fake.bodies == []
    code, _, _ = outrider("serve", "--base-url", url, "--num-prompts", "1")
    assert code == 0
