"""Salts keep keys apart, cannot be made by a request, and agree where a secret is shared."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.keys import given_keys
from gateway.tenants import Tenants, read_salt_secret
from outrider.errors import InputError
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import FakeVerifier

SECRET = b"0123456789abcdef"
names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
pairs = st.tuples(names, st.text(max_size=1024))


@settings(deadline=None)
@given(pairs, pairs)
def test_only_the_same_key_and_salt_are_the_same(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    tenants = Tenants(SECRET)
    assert (tenants.salt(*one) == tenants.salt(*other)) is (one == other)
    # Within what a verifier takes, however long the request's own was.
    assert len(tenants.salt(*one)) == 64


def test_a_salt_cannot_be_made_by_asking_for_it() -> None:
    tenants = Tenants(SECRET)
    seen = tenants.salt("victim", "mine")
    assert tenants.salt("attacker", seen) != seen
    assert tenants.salt("attacker", "victim\0mine") != seen


def test_a_shared_secret_gives_the_same_salts_and_none_gives_others() -> None:
    assert Tenants(SECRET).salt("a", "s") == Tenants(SECRET).salt("a", "s")
    assert Tenants().salt("a", "s") != Tenants().salt("a", "s")


def test_without_keys_or_where_shared_a_request_says_it_itself() -> None:
    assert Tenants(SECRET).salt("", "mine") == "mine"
    assert Tenants(SECRET, shared=True).salt("a", "mine") == "mine"


def test_a_secret_is_read_without_its_line_break(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\r\n")
    assert read_salt_secret(file, "o") == SECRET
    file.write_bytes(b"short\n")
    with pytest.raises(InputError, match=r"o: .* has 5 bytes; a secret needs 16"):
        read_salt_secret(file, "o")
    with pytest.raises(InputError, match=r"o: .* cannot be read"):
        read_salt_secret(tmp_path / "gone", "o")


async def salts_of(
    start_gateway: StartGateway,
    verifier: FakeVerifier,
    *asked: tuple[str, str | None],
    **options: object,
) -> list[str]:
    """The salts that the verifier saw for requests of (key, cache_salt)."""
    keys = given_keys(["alpha", "beta"], "--api-key")
    gateway = await start_gateway(verifier.address, api_keys=keys, **options)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        for key, salt in asked:
            body = {"prompt": "x"} if salt is None else {"prompt": "x", "cache_salt": salt}
            headers = {"Authorization": f"Bearer {key}"}
            answer = await http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
    return [request.cache_salt for request in verifier.requests]


async def test_requests_of_two_keys_never_share_a_salt(
    start_gateway: StartGateway, verifier: FakeVerifier
) -> None:
    a, b, a_same, b_same, a_again, forged = await salts_of(
        start_gateway,
        verifier,
        *(("alpha", None), ("beta", None), ("alpha", "s"), ("beta", "s"), ("alpha", "s")),
        ("beta", "x" * 1024),
    )
    assert len({a, b, a_same, b_same, forged}) == 5
    assert a_again == a_same
    assert all(len(salt) == 64 for salt in (a, b, a_same, forged))


async def test_an_operator_may_let_keys_share(
    start_gateway: StartGateway, verifier: FakeVerifier
) -> None:
    asked = (("alpha", None), ("beta", None), ("beta", "s"))
    options = {"share_cache_across_keys": True}
    assert await salts_of(start_gateway, verifier, *asked, **options) == ["", "", "s"]


async def test_gateways_with_one_secret_agree(
    start_gateway: StartGateway, verifier: FakeVerifier
) -> None:
    for _ in range(2):
        salts = await salts_of(start_gateway, verifier, ("alpha", "s"), cache_salt_secret=SECRET)
    assert salts[0] == salts[1] != "s"
