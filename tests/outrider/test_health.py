"""What containers' health checks run."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from outrider.health import main
from tests.certificates import Authority


@contextmanager
def answering(statuses: list[int], secrets: ssl.SSLContext | None = None) -> Iterator[int]:
    """A web server that answers with `statuses`' first; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[0])
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if secrets is not None:
        server.socket = secrets.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def web() -> Iterator[tuple[str, list[int]]]:
    """A web server, and the statuses that it answers next."""
    statuses = [200]
    with answering(statuses) as port:
        yield f"http://127.0.0.1:{port}/health", statuses


@pytest.fixture
def service() -> Iterator[tuple[str, health.HealthServicer]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None).wait()


def test_http(web: tuple[str, list[int]], capsys: pytest.CaptureFixture[str]) -> None:
    url, statuses = web
    assert main([url]) == 0
    statuses[0] = 503
    assert main([url]) == 1
    assert f"{url} does not serve: it answers 503" in capsys.readouterr().err


def test_http_goes_past_proxies(
    web: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert main([web[0]]) == 0


def test_https_with_a_certificate_for_the_name_that_clients_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.issue("web", "api.example"), authority.issue("health")
    secrets = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secrets.load_cert_chain(pair.cert, pair.key)
    secrets.load_verify_locations(authority.ca)
    secrets.verify_mode = ssl.CERT_REQUIRED
    shown = ["--tls-cert", str(own.cert), "--tls-key", str(own.key)]
    trusted = ["--tls-ca", str(authority.ca)]
    named = ["--server-name", "api.example"]
    with answering([200], secrets) as port:
        url = f"https://127.0.0.1:{port}/health"
        assert main([url, *shown, *trusted, *named]) == 0
        for missing in ([*shown, *trusted], [*shown, *named], [*trusted, *named]):
            assert main([url, *missing]) == 1
            assert f"{url} does not serve: " in capsys.readouterr().err


@pytest.mark.parametrize("target", ["http://", "http://127.0.0.1:x/", "https://127.0.0.1:99999/"])
def test_what_is_no_address_serves_nothing(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target]) == 1
    assert f"{target} does not serve: " in capsys.readouterr().err


def test_grpc(
    service: tuple[str, health.HealthServicer], capsys: pytest.CaptureFixture[str]
) -> None:
    address, servicer = service
    assert main([address]) == 0
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert main([address]) == 1
    assert "it is NOT_SERVING" in capsys.readouterr().err


def test_nobody_there(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for target in (f"127.0.0.1:{free_port}", f"http://127.0.0.1:{free_port}/health"):
        assert main([target]) == 1
        assert f"{target} does not serve" in capsys.readouterr().err


def test_a_bad_certificate_file_is_said(
    service: tuple[str, health.HealthServicer], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([service[0], "--tls-ca", "/nonexistent/ca.pem"]) == 1
    assert "/nonexistent/ca.pem" in capsys.readouterr().err


def test_as_a_program_its_status_is_the_answer_and_http_needs_no_grpc(
    web: tuple[str, list[int]],
) -> None:
    url, statuses = web
    code = (
        "import sys; from outrider.health import main; status = main(sys.argv[1:])\n"
        "assert 'grpc' not in sys.modules; sys.exit(status)"
    )
    assert subprocess.run([sys.executable, "-c", code, url], check=False).returncode == 0
    statuses[0] = 503
    command = [sys.executable, "-m", "outrider.health", url]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
