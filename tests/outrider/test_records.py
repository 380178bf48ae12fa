"""Frozen dataclasses that are made quickly."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from outrider.records import record


@record(frozen=True, slots=True)
class Draft:
    ids: tuple[int, ...]
    proposer: str = ""


def test_a_record_is_compared_hashed_and_replaced_as_a_frozen_dataclass_is() -> None:
    one = Draft((1, 2), proposer="ngram")
    assert one == Draft((1, 2), "ngram")
    assert hash(one) == hash(Draft((1, 2), "ngram"))
    assert one != Draft((1, 2))
    assert replace(one, ids=(3,)) == Draft((3,), "ngram")
    assert repr(one) == "Draft(ids=(1, 2), proposer='ngram')"


def test_a_record_has_no_other_fields_and_travels() -> None:
    one = Draft((1,))
    assert not hasattr(one, "__dict__")
    assert pickle.loads(pickle.dumps(one)) == one


def test_fields_are_set_plainly() -> None:
    """What makes it quick: no `object.__setattr__`, hence no error at run time."""
    one = Draft((1,))
    try:
        one.proposer = "suffix"  # type: ignore[misc]
    except FrozenInstanceError:
        pytest.fail("the record is frozen at run time, and slow to make")
    assert one.proposer == "suffix"


def test_a_record_is_frozen_to_the_type_checker_always() -> None:
    with pytest.raises(TypeError, match="a record is frozen"):
        record(frozen=False, slots=True)
