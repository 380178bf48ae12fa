"""Which prompts begin alike, and who was sent them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from speculation.v1 import verifier_pb2 as pb

from gateway.affinity import SHORTEST_BYTES, PrefixAffinity, prefix_keys

LONG = "You are helpful. " * 100


def text(prompt: str, **fields: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=prompt, model="m", **fields)


def chat(messages: str, tools: str = "") -> pb.GenerateRequest:
    return pb.GenerateRequest(
        model="m", chat=pb.ChatMessages(messages_json=messages, tools_json=tools)
    )


def test_short_prompts_have_no_key() -> None:
    assert prefix_keys(text("x" * (SHORTEST_BYTES - 1))) == ()
    assert len(prefix_keys(text("x" * SHORTEST_BYTES))) == 1
    assert prefix_keys(pb.GenerateRequest(model="m")) == ()


def test_keys_are_of_growing_beginnings_the_longest_first() -> None:
    keys = prefix_keys(text("x" * 1100))
    assert len(keys) == 3
    assert keys[2:] == prefix_keys(text("x" * 300))
    assert keys[1:] == prefix_keys(text("x" * 900))


def test_a_conversation_that_goes_on_keeps_the_keys_of_its_beginning() -> None:
    before = chat('[{"role": "user", "content": "' + LONG + '"}]')
    after = chat(
        '[{"role": "user", "content": "' + LONG + '"}, {"role": "assistant", "content": "'
        "" + LONG + '"}]'
    )
    assert set(prefix_keys(before)) < set(prefix_keys(after))


def test_what_must_not_share_a_cache_shares_no_key() -> None:
    base = set(prefix_keys(text(LONG)))
    ids = pb.GenerateRequest(model="m", token_ids=pb.TokenIds(ids=list(range(2000))))
    for other in (
        text(LONG, cache_salt="tenant"),
        pb.GenerateRequest(text=LONG, model="other"),
        text("A" + LONG),
        chat(LONG),
        chat(LONG, tools="[]"),
        ids,
    ):
        keys = set(prefix_keys(other))
        assert keys
        assert not base & keys
    assert prefix_keys(chat(LONG)) != prefix_keys(chat(LONG, tools="[{}]"))


def test_negative_and_large_ids_have_keys() -> None:
    ids = [-1, 2**31 - 1] * 64
    assert prefix_keys(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids)))


def test_only_so_much_of_a_huge_prompt_is_read() -> None:
    huge = "x" * (5 * 1024 * 1024)
    assert prefix_keys(text(huge)) == prefix_keys(text(huge + "y"))
    assert len(prefix_keys(text(huge))) == 15


@given(st.text(min_size=0, max_size=3000), st.text(max_size=50))
def test_a_longer_prompt_has_all_keys_of_its_beginning(begin: str, rest: str) -> None:
    shorter, longer = prefix_keys(text(begin)), prefix_keys(text(begin + rest))
    assert longer[len(longer) - len(shorter) :] == shorter


def test_the_longest_beginning_is_asked_first() -> None:
    affinity = PrefixAffinity()
    affinity.sent(prefix_keys(text("x" * 600)), "one")
    affinity.sent(prefix_keys(text("x" * 300)), "two")
    keys = prefix_keys(text("x" * 5000))
    assert list(affinity.addresses(keys)) == ["one", "two"]
    assert list(affinity.addresses(prefix_keys(text("y" * 5000)))) == []


def test_the_oldest_beginnings_are_forgotten() -> None:
    affinity = PrefixAffinity(capacity=2)
    first, second, third = (prefix_keys(text(letter * 300)) for letter in "abc")
    affinity.sent(first, "one")
    affinity.sent(second, "two")
    affinity.sent(first, "one")
    affinity.sent(third, "three")
    assert len(affinity) == 2
    assert list(affinity.addresses(first)) == ["one"]
    assert list(affinity.addresses(second)) == []
