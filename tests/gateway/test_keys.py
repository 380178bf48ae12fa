"""Keys are made, written as hashes, read back and recognised."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.keys import ApiKey, KeyRing, digest_of, file_line, given_keys, new_key, read_key_file
from outrider.errors import InputError

HASH = "sha256:" + "0" * 64


def test_a_new_key_is_let_in_by_its_line_and_not_in_it(tmp_path: Path) -> None:
    key = new_key()
    line = file_line("alice", key, 60, 4)
    assert key not in line
    file = tmp_path / "keys"
    file.write_text(line + "\n\n" + file_line("bob", new_key()) + "\n")
    ring = KeyRing(read_key_file(file, "--api-key-file"))
    found = ring.find(key)
    assert found is not None
    assert (found.name, found.requests_per_minute, found.max_concurrent_requests) == (
        "alice",
        60,
        4,
    )
    assert ring.find(key + "x") is None
    assert ring.find("") is None


def test_keys_differ_and_have_256_bits() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == len("outrider-") + 43 for key in keys)


def test_yaml_says_the_same_as_lines(tmp_path: Path) -> None:
    entries = [{"name": "a", "hash": HASH, "requests_per_minute": 5}]
    yaml, lines = tmp_path / "a.yaml", tmp_path / "a.jsonl"
    yaml.write_text(f"# ours\n- name: a\n  hash: {HASH}\n  requests_per_minute: 5\n")
    lines.write_text("\n".join(map(json.dumps, entries)))
    assert read_key_file(yaml, "o") == read_key_file(lines, "o") == (ApiKey("a", bytes(32), 5),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no keys; `outrider keys new NAME` makes one"),
        ("a: b", "is not a list of keys"),
        ("- a: [", "is neither JSON lines nor YAML"),
        ("{nonsense", "line 1 is not JSON"),
        (f'{{"name": "a", "hash": "{HASH}"}}\n[', "line 2 is not JSON"),
        ("- name: a", "entry 1: hash is required"),
        ("- name: a\n  hash: plain-key", "entry 1: hash: 'plain-key'"),
        (f"- name: 'a b'\n  hash: {HASH}", "entry 1: name: 'a b'"),
        (f"- name: a\n  hash: {HASH}\n  requests_per_minute: 0", "requests_per_minute: 0"),
        (f"- name: a\n  hash: {HASH}\n  max_concurrent_requests: many", "'many'"),
        (f"- name: a\n  hash: {HASH}\n  rpm: 5", "entry 1: rpm"),
    ],
)
def test_a_malformed_file_names_the_entry(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        read_key_file(file, "--api-key-file")
    assert str(caught.value).startswith(f"--api-key-file: {file}")
    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--api-key-file: .* cannot be read"):
        read_key_file(tmp_path / "gone", "--api-key-file")


@pytest.mark.parametrize("key", ["", "a b", "a,b", "naïve", "x" * 257, "a\n"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InputError) as caught:
        given_keys(["fine", key], "--api-key")
    assert str(caught.value).startswith("--api-key: key 2 of 2 is not")
    assert not key or key not in str(caught.value)


def test_given_keys_are_numbered() -> None:
    assert [key.name for key in given_keys(["x", "y"], "--api-key")] == ["key-1", "key-2"]


def test_two_of_one_name_or_one_key_are_refused() -> None:
    with pytest.raises(InputError, match="'a' is the name of two keys"):
        KeyRing([ApiKey("a", bytes(32)), ApiKey("a", digest_of("x"))])
    with pytest.raises(InputError, match="'a' and 'b' are the same key"):
        KeyRing([ApiKey("a", bytes(32)), ApiKey("b", bytes(32))])


def test_every_key_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        seen.append((left, right))
        return left == right

    monkeypatch.setattr("gateway.keys.hmac.compare_digest", compare)
    ring = KeyRing(given_keys(["x", "y", "z"], "--api-key"))
    for presented in ("x", "z", "wrong"):
        seen.clear()
        ring.find(presented)
        assert [left for left, _ in seen] == [key.digest for key in ring.keys]
        assert {right for _, right in seen} == {hashlib.sha256(presented.encode()).digest()}


def test_a_digest_is_not_in_a_repr() -> None:
    (key,) = given_keys(["secret"], "--api-key")
    assert repr(key).count("=") == 3 and "digest" not in repr(key)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_is_a_key_by_accident(text: str) -> None:
    assert KeyRing(given_keys(["the-key"], "--api-key")).find(text) is None or text == "the-key"


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_content_is_keys_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_key_file(file, "--api-key-file")
