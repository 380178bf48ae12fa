"""Certificate files are checked before anything listens: each fault names option and file."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from outrider.certificates import read_authorities, read_pair
from outrider.credentials import Credentials, load_credentials
from outrider.errors import InputError
from outrider.https import load_https
from tests.certificates import Authority, Pair

NAMES = ("--tls-cert", "--tls-key")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue()


def refusal(cert: Path, key: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_pair(cert, key, NAMES)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_pair_that_fits_is_read_as_it_is(pair: Pair) -> None:
    assert read_pair(pair.cert, pair.key, NAMES) == (pair.cert.read_bytes(), pair.key.read_bytes())


def test_a_missing_file_is_named(pair: Pair, tmp_path: Path) -> None:
    gone = tmp_path / "gone.pem"
    assert refusal(gone, pair.key) == (
        f"--tls-cert: {gone} cannot be read: no such file or directory"
    )
    assert f"--tls-key: {gone} cannot be read" in refusal(pair.cert, gone)
    with pytest.raises(InputError, match=f"--tls-ca: {gone} cannot be read"):
        read_authorities(gone, "--tls-ca")


def test_what_is_no_pem_is_refused(pair: Pair, tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x00certificate")
    assert "has no certificate in PEM form" in refusal(noise, pair.key)
    assert "is not a private key in PEM form" in refusal(pair.cert, noise)
    with pytest.raises(InputError, match=r"--tls-ca: .* has no certificate in PEM form"):
        read_authorities(noise, "--tls-ca")


def test_swapped_files_are_refused(pair: Pair) -> None:
    assert "--tls-cert" in refusal(pair.key, pair.cert)


def test_the_key_of_another_certificate_is_refused(authority: Authority, pair: Pair) -> None:
    other = authority.issue("other")
    text = refusal(pair.cert, other.key)
    assert text.startswith(f"--tls-key: {other.key} is not the key of the certificate in")


@pytest.mark.parametrize(
    ("days", "words"), [((-3, -1), "expired at 20"), ((1, 3), "is valid from 20")]
)
def test_a_certificate_of_another_time_is_refused(
    authority: Authority, days: tuple[float, float], words: str
) -> None:
    wrong = authority.issue("wrong", days=days)
    assert words in refusal(wrong.cert, wrong.key)


def test_an_authority_that_expired_is_refused(authority: Authority) -> None:
    future = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(InputError, match=r"--tls-ca: .*trustme.* expired at"):
        read_authorities(authority.ca, "--tls-ca", future)


def test_an_encrypted_key_is_refused_with_what_to_do(pair: Pair, tmp_path: Path) -> None:
    private = load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    )
    assert "is encrypted; give a key without a passphrase" in refusal(pair.cert, locked)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"certificate": 1}, "--tls-cert: .* needs --tls-key"),
        ({"key": 1}, "--tls-key: .* needs --tls-cert"),
        ({"require_client_certificate": True}, "--tls-require-client-cert: needs --tls-ca"),
        ({"authorities": 1, "require_client_certificate": True}, "needs --tls-ca, .* --tls-cert"),
    ],
)
def test_options_that_need_each_other(given: dict[str, object], words: str, pair: Pair) -> None:
    files = {"certificate": pair.cert, "key": pair.key, "authorities": pair.cert}
    options = {key: files.get(key, value) for key, value in given.items()}
    with pytest.raises(InputError, match=words):
        load_credentials(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keyfile": Path("k")}, "--ssl-keyfile: k needs --ssl-certfile"),
        ({"ca_certs": Path("c")}, "--ssl-ca-certs: c needs --ssl-certfile"),
        ({"cert_reqs": 2}, "--ssl-cert-reqs: 2 needs --ssl-certfile"),
        ({"cert_reqs": 7}, r"--ssl-cert-reqs: 7 is not 0 \(none\), 1"),
    ],
)
def test_https_options_that_need_each_other(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_https(None, **options)  # type: ignore[arg-type]


def test_required_client_certificates_need_an_authority(pair: Pair) -> None:
    with pytest.raises(InputError, match="--ssl-cert-reqs: 2 needs --ssl-ca-certs"):
        load_https(pair.cert, pair.key, cert_reqs=2)


def test_key_and_certificate_of_https_may_be_one_file(pair: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    https = load_https(both)
    assert https is not None
    assert https.context().minimum_version.name == "TLSv1_2"
    with pytest.raises(InputError, match=r"--ssl-certfile: .*is not a private key"):
        load_https(pair.cert)


def test_a_key_is_never_shown(authority: Authority) -> None:
    text = repr(authority.server())
    assert "BEGIN" not in text and "tls=True" in text
    assert isinstance(authority.server(), Credentials)
