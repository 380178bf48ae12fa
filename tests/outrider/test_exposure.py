"""Which ports may be opened and dialled without a word, and what the log says of the rest."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from outrider.credentials import PLAIN, Credentials
from outrider.errors import InputError
from outrider.exposure import http_exposure, plain_text_dialled
from outrider.https import Https

TLS = Https(Path("c"), Path("k"))
MUTUAL = Https(Path("c"), Path("k"), Path("a"), ssl.CERT_REQUIRED)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_is_nobody_elses(host: str) -> None:
    assert http_exposure(host, keys=False, https=None, insecure=False) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway", ""])
def test_an_open_port_needs_a_word(host: str) -> None:
    with pytest.raises(InputError) as caught:
        http_exposure(host, keys=False, https=None, insecure=False)
    text = str(caught.value)
    assert text.startswith(f"--host: {host} can be reached by other machines")
    assert "--api-key" in text and "--ssl-certfile" in text and "--insecure" in text
    assert "prompts and answers can be read" in http_exposure(
        host, keys=False, https=None, insecure=True
    )


def test_keys_in_plain_text_are_warned_of() -> None:
    warning = http_exposure("0.0.0.0", keys=True, https=None, insecure=False)
    assert "prompts, answers and API keys can be read" in warning


def test_tls_without_keys_is_warned_of() -> None:
    warning = http_exposure("0.0.0.0", keys=False, https=TLS, insecure=False)
    assert "asks for no API key" in warning


@pytest.mark.parametrize(("keys", "https"), [(True, TLS), (False, MUTUAL), (True, MUTUAL)])
def test_what_is_protected_needs_no_warning(keys: bool, https: Https) -> None:
    assert http_exposure("0.0.0.0", keys=keys, https=https, insecure=False) == ""


def warnings_of(address: str, credentials: Credentials = PLAIN) -> list[str]:
    return list(plain_text_dialled([("--otlp-endpoint", address)], credentials))


@pytest.mark.parametrize(
    "address",
    ["collector:4317", "192.0.2.1:4317", "[2001:db8::1]:1", "http://c:4317", "dns:verifier:50051"],
)
def test_what_is_dialled_across_the_network_in_plain_text_is_warned_of(address: str) -> None:
    (warning,) = warnings_of(address)
    assert warning.startswith(f"--otlp-endpoint: {address} is on another machine")
    assert "--tls-ca" in warning and "--insecure" in warning
    assert not warnings_of(address, Credentials(insecure=True))


@pytest.mark.parametrize(
    "address",
    ["", "unix:/run/o.sock", "127.0.0.1:1", "http://localhost:1", "dns:localhost:1", "https://c:1"],
)
def test_what_nobody_reads_on_the_way_is_not(address: str) -> None:
    assert not warnings_of(address)


@pytest.mark.parametrize(
    ("address", "count"), [("c:1", 0), ("dns:c:1", 0), ("https://c:1", 0), ("http://c:1", 1)]
)
def test_with_authorities_only_what_asks_for_plain_text_is_plain(address: str, count: int) -> None:
    assert len(warnings_of(address, Credentials(authorities=b"pem"))) == count
