"""The command line as a user meets it: answers on stdout, one line for what is wrong."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from speculation.v1 import proposer_pb2, proposer_pb2_grpc, verifier_pb2, verifier_pb2_grpc

from outrider import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Runs a command line; its exit code, stdout and stderr."""
    monkeypatch.setenv("OUTRIDER_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    def GetInfo(
        self, request: verifier_pb2.GetInfoRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.GetInfoResponse:
        return verifier_pb2.GetInfoResponse(
            model="my-model",
            eos_token_ids=[1, 2],
            proposers=[
                verifier_pb2.ProposerState(name="ngram", state="connected", dropped={"stale": 3}),
                verifier_pb2.ProposerState(name="suffix", state="refused", detail="too old"),
            ],
        )


class Proposer(proposer_pb2_grpc.ProposerServiceServicer):
    def GetCapabilities(
        self, request: proposer_pb2.GetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> proposer_pb2.GetCapabilitiesResponse:
        return proposer_pb2.GetCapabilitiesResponse(
            capabilities=proposer_pb2.Capabilities(name="ngram", max_draft_tokens=8)
        )


@pytest.fixture
def serve(socket_address: str) -> Iterator[Callable[[object], str]]:
    servers: list[grpc.Server] = []

    def start(servicer: object) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(2))
        if isinstance(servicer, Verifier):
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
        elif isinstance(servicer, Proposer):
            proposer_pb2_grpc.add_ProposerServiceServicer_to_server(servicer, server)
        server.add_insecure_port(socket_address)
        server.start()
        servers.append(server)
        return socket_address

    yield start
    for server in servers:
        server.stop(None).wait()


def test_version(outrider: Run) -> None:
    assert outrider("version") == (0, "0.1.0\n", "")


def test_help_lists_the_commands(outrider: Run) -> None:
    code, out, _ = outrider("--help")
    assert code == 0
    for command in ("serve", "proposer", "verifier", "gateway", "info", "models", "version"):
        assert f"  {command} " in out


def test_models_that_are_not_here(outrider: Run) -> None:
    code, out, _ = outrider("models", "list")
    assert (code, out.split("\t")[:2]) == (0, ["smollm2-135m", "not pulled"])
    missing = "error: smollm2-135m is not here"
    assert outrider("models", "path", "smollm2-135m")[::2] == (
        1,
        f"{missing}; run: outrider models pull smollm2-135m\n",
    )
    assert outrider("models", "remove", "smollm2-135m")[::2] == (
        1,
        f"{missing}; there is nothing to remove\n",
    )


WRONG = [
    (("serve",), "MODEL: which model?"),
    (("serve", "/no/such/folder"), "MODEL: there is no folder '/no/such/folder'"),
    (("serve", "x", "--port", "0"), "--port: 0: "),
    (("serve", "x", "--port", "65536"), "--port: 65536: "),
    (("serve", "x", "--log-level", "loud"), "--log-level: 'loud': "),
    (("serve", "x", "--max-num-seqs", "0"), "--max-num-seqs: 0: "),
    (("serve", "x", "--dtype", "int3"), "--dtype: 'int3': "),
    (("serve", "x", "-sc", "{"), "--speculative-config: not JSON"),
    (("serve", "x", "-sc", "{}"), "--speculative-config: method is required"),
    (("serve", "x", "--spec-method", "eagle"), "--spec-method: method 'eagle' is not served yet"),
    (("serve", "x", "--config", "/no/such.yaml"), "--config: there is no file"),
    (("serve", "x", "--no-speculation", "--spec-tokens", "2"), "--no-speculation: cannot be"),
    (("verifier", "/no", "--listen", "unix:x"), "MODEL: there is no folder '/no'"),
    (("verifier", "x", "--listen", "x"), "--listen: 'x' is not an address"),
    (("verifier", "x", "--listen", "unix:x", "--proposer", "y"), "--proposer: 'y' is not"),
    (("verifier", "x", "--listen", "unix:x", "--device", "tpu"), "--device: 'tpu' is not one of"),
    (("verifier", "x", "--listen", "unix:x", "--dtype", "int3"), "--dtype: 'int3' is not one of"),
    (("gateway", "--verifier", "x"), "--verifier: 'x' is not an address"),
    (("gateway", "--verifier", "a:1", "--log-level", "loud"), "--log-level: 'loud' is not one of"),
    (
        ("gateway", "--verifier", "a:1", "--per-request-spec-decode-metrics", "all"),
        "--per-request-spec-decode-metrics: 'all' is not one of none, summary, detailed",
    ),
    (
        ("gateway", "--verifier", "a:1", "--tool-call-parser", "llama4"),
        "--tool-call-parser: 'llama4' is not one of hermes, llama3_json, mistral",
    ),
    (("proposer", "--listen", "x", "--method", "ngram"), "--listen: 'x' is not an address"),
    (("proposer", "--listen", "a:1", "--method", "eagle"), "method 'eagle' is not served yet"),
    (("proposer", "--listen", "a:1"), "method is required"),
    (("models", "pull", "smollm"), "unknown model 'smollm'; known are smollm2-135m"),
    (("models", "path", "x"), "unknown model 'x'"),
    (("info", "nowhere"), "ADDRESS: 'nowhere' is not an address"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG]
)
def test_wrong_input_is_one_line_and_exit_code_2(
    outrider: Run, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = outrider(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "x", "--no-such-option"),
        ("serve", "x", "--port", "http"),
        ("gateway",),
        ("verifier", "x"),
        ("info",),
        ("no-such-command",),
    ],
)
def test_wrong_usage_is_exit_code_2_without_a_traceback(
    outrider: Run, arguments: tuple[str, ...]
) -> None:
    code, _, err = outrider(*arguments)
    assert code == 2
    assert "Usage: outrider" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [("serve", "x"), ("gateway", "--verifier", "a:1")])
def test_a_taken_port(outrider: Run, command: tuple[str, ...], free_port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port))
        holder.listen()
        code, _, err = outrider(*command, "--port", str(free_port))
    assert code == 2
    assert f"--port: {free_port} on 127.0.0.1 cannot be used (address already in use)" in err


def test_info_of_a_verifier(outrider: Run, serve: Callable[[object], str]) -> None:
    code, out, err = outrider("info", serve(Verifier()))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "model: my-model" in lines
    assert "eos_token_ids: 1 2" in lines
    start = lines.index("proposers:")
    assert lines[start + 1] == "  - name: ngram"
    assert "    state: connected" in lines
    assert "      stale: 3" in lines
    assert "  - name: suffix" in lines


def test_info_as_json(outrider: Run, serve: Callable[[object], str]) -> None:
    code, out, _ = outrider("info", "--json", serve(Verifier()))
    assert code == 0
    assert '"model": "my-model"' in out


def test_info_of_a_proposer(outrider: Run, serve: Callable[[object], str]) -> None:
    code, out, _ = outrider("info", serve(Proposer()))
    assert code == 0
    assert "name: ngram" in out
    assert "max_draft_tokens: 8" in out


def test_info_of_nobody(outrider: Run, socket_address: str) -> None:
    code, _, err = outrider("info", socket_address)
    assert code == 1
    assert err.startswith(f"error: ADDRESS: {socket_address} does not answer: unavailable: ")


def test_info_of_another_service(outrider: Run, serve: Callable[[object], str]) -> None:
    code, _, err = outrider("info", serve(object()))
    assert code == 1
    assert "does not answer: unimplemented" in err


@pytest.mark.parametrize(
    "imports",
    [
        "outrider.cli",
        "outrider.cli, gateway.server, gateway.settings",
        "outrider.cli, proposer_service.server, proposer_service.settings",
        "outrider.cli, outrider.serve_options, outrider.serve_plan, outrider.verifier_speculation",
    ],
)
def test_light_services_import_no_torch(imports: str) -> None:
    code = f"import {imports}, sys; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
