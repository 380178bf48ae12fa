"""Keys and certificates from the command line, the environment and serve's file to the services."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.keys import KeyRing, read_key_file
from outrider.cli import app
from outrider.commands.security_options import api_keys_of
from outrider.errors import InputError
from outrider.model_folders import Model
from outrider.serve_options import ServeOptions, merge_options
from outrider.serve_plan import plan_services, public_url
from outrider.supervisor import Service
from tests.certificates import Authority

VARIABLE = "OUTRIDER_API_KEY"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def plan(options: ServeOptions) -> dict[str, Service]:
    services = plan_services(options, Model(Path("/m"), "m"), Path("/tmp/run"))
    return {service.name: service for service in services}


def failure(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_no_keys_are_none() -> None:
    assert api_keys_of(None, None) == ()


def test_the_variable_is_taken_where_no_option_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "one,two")
    ring = KeyRing(api_keys_of(None, None))
    assert [ring.find(key) is not None for key in ("one", "two", "one,two")] == [True, True, False]
    ring = KeyRing(api_keys_of(["three"], None))
    assert [ring.find(key) is not None for key in ("one", "three")] == [False, True]


def test_a_malformed_variable_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "secret one,")
    with pytest.raises(InputError) as caught:
        api_keys_of(None, None)
    assert str(caught.value).startswith(f"${VARIABLE}: key 1 of 2")
    assert "secret" not in str(caught.value)


def test_given_and_stored_keys_are_one_ring(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    result = CliRunner().invoke(app, ["keys", "new", "alice", "--append-to", str(file)])
    assert result.exit_code == 0, result.output
    ring = KeyRing(api_keys_of(["given"], file))
    alice = ring.find(result.output.strip())
    assert alice is not None and alice.name == "alice"
    assert ring.find("given") is not None


def test_new_keys_are_appended_to_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(json.dumps({"name": "first", "hash": "sha256:" + "0" * 64}))
    for name in ("alice", "bob"):
        arguments = ["keys", "new", name, "--append-to", str(file), "--requests-per-minute", "5"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    keys = read_key_file(file, "o")
    assert [(key.name, key.requests_per_minute) for key in keys] == [
        ("first", None),
        ("alice", 5),
        ("bob", 5),
    ]
    assert "'bob' has a key" in failure("keys", "new", "bob", "--append-to", str(file))
    file.write_text("- name: x\n")
    assert "is no file of JSON lines" in failure("keys", "new", "c", "--append-to", str(file))


def test_a_new_key_is_printed_with_its_line() -> None:
    key, line = CliRunner().invoke(app, ["keys", "new", "alice"]).output.split()[0::1][:2]
    assert key.startswith("outrider-") and line.startswith("{")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verifier", "m", "--listen", "0.0.0.0:1"], "--listen: 0.0.0.0:1 can be reached"),
        (["proposer", "--method", "ngram", "--listen", "0.0.0.0:1"], "say --insecure"),
        (["gateway", "--verifier", "unix:/x", "--host", "0.0.0.0"], "--host: 0.0.0.0 can be"),
        (["serve", "m", "--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached"),
        (["serve", "m", "--ssl-certfile", "/gone"], "--ssl-certfile: /gone cannot be read"),
        (["serve", "m", "--api-key-file", "/gone"], "--api-key-file: /gone cannot be read"),
        (["serve", "m", "--tls-ca", "/gone"], "--tls-ca: /gone cannot be read"),
        (["serve", "m", "--cache-salt-secret-file", "/gone"], "secret-file: /gone cannot be"),
        (["proposer", "--method", "ngram", "--listen", "unix:/x", "--tls-cert", "c"], "--tls-key"),
        (["info", "127.0.0.1:1", "--tls-ca", "/gone"], "--tls-ca: /gone cannot be read"),
    ],
)
def test_what_is_missing_ends_a_command_at_its_start(arguments: list[str], words: str) -> None:
    assert words in failure(*arguments)


def test_keys_reach_the_gateway_alone_and_on_no_command_line() -> None:
    services = plan(merge_options({"api_key": ["one", "two"]}, None))
    assert services["gateway"].environment == ((VARIABLE, "one,two"),)
    for name, service in services.items():
        assert name == "gateway" or service.environment == ()
        assert not any("one" in argument for argument in service.command if "key" in argument)


def test_certificates_reach_whom_they_concern(authority: Authority) -> None:
    pair = authority.issue()
    options = {
        "ssl_certfile": str(pair.cert),
        "ssl_keyfile": str(pair.key),
        "ssl_ca_certs": str(authority.ca),
        "ssl_cert_reqs": 2,
        "tls_ca": str(authority.ca),
        "insecure": True,
        "share_cache_across_keys": True,
    }
    merged = merge_options(options, None)
    assert merged.check_security("0.0.0.0") is False
    assert public_url(merged) == "https://127.0.0.1:8000"
    services = plan(merged)
    gateway = {
        f"--ssl-certfile={pair.cert}",
        f"--ssl-keyfile={pair.key}",
        f"--ssl-ca-certs={authority.ca}",
        "--ssl-cert-reqs=2",
        "--insecure",
        "--share-cache-across-keys",
    }
    assert gateway <= set(services["gateway"].command)
    for name, service in services.items():
        assert f"--tls-ca={authority.ca}" in service.command
        assert name == "gateway" or not gateway & set(service.command)


def test_serves_file_has_them_too(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: hush-1\ninsecure: true\n")
    options = merge_options({}, file)
    assert options.api_key == ["hush-1"] and options.insecure
    assert options.check_security("0.0.0.0") is True
    file.write_text("api-key: {secret: 1}\n")
    with pytest.raises(InputError) as caught:
        merge_options({}, file)
    assert "api_key" in str(caught.value) and "secret" not in str(caught.value)
    assert "hush-1" not in repr(options)
