"""Names of blocks: equal for equal beginnings only, and one block for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verifier_service.prefix_cache import PrefixCache

SECRET = bytes(range(32))


def names(ids: list[int], salt: str = "", secret: bytes = SECRET, size: int = 2) -> list[bytes]:
    made: list[bytes] = []
    PrefixCache(size, secret).extend_names(made, ids, salt, len(ids) // size)
    return made


@given(
    st.lists(st.integers(0, 2), max_size=8),
    st.lists(st.integers(0, 2), max_size=8),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "a", "b"]),
)
def test_names_agree_exactly_as_far_as_salt_and_ids_do(
    one: list[int], other: list[int], salt: str, another: str
) -> None:
    for index, (x, y) in enumerate(zip(names(one, salt), names(other, another), strict=False)):
        end = 2 * (index + 1)
        assert (x == y) is (salt == another and one[:end] == other[:end])


def test_names_may_be_made_in_any_number_of_calls() -> None:
    cache = PrefixCache(2, SECRET)
    ids = [5, 6, 7]
    made: list[bytes] = []
    cache.extend_names(made, ids, "s", 1)
    ids.extend([8, 9])
    cache.extend_names(made, ids, "s", 2)
    assert made == names([5, 6, 7, 8], "s")


def test_names_are_256_bits_under_a_secret_of_the_process() -> None:
    assert {len(name) for name in names([1, 2, 3, 4])} == {32}
    assert names([1, 2]) != names([1, 2], secret=bytes(32))
    drawn = [PrefixCache(1) for _ in range(2)]
    made: list[list[bytes]] = [[], []]
    for cache, list_ in zip(drawn, made, strict=True):
        cache.extend_names(list_, [1], "", 1)
    assert made[0] != made[1]


def test_large_ids_and_block_borders_are_told_apart() -> None:
    assert names([1, 256]) != names([1, 1])
    assert names([0, 65536]) != names([1, 0])
    assert names([1, 2, 3, 4], size=2)[-1] != names([1, 2, 3, 4], size=4)[-1]


def test_a_name_has_one_block_and_a_block_one_name() -> None:
    cache = PrefixCache(2, SECRET)
    a, b = names([1, 2, 3, 4])
    assert cache.find(a) is None
    assert cache.publish(a, 7)
    assert not cache.publish(a, 8)
    assert not cache.publish(b, 7)
    assert (cache.find(a), cache.find(b)) == (7, None)
    cache.forget(7)
    assert cache.find(a) is None
    assert cache.publish(a, 8) and cache.find(a) == 8
