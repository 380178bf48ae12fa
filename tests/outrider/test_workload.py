from __future__ import annotations

import pytest

from outrider.workload import MAX_CHARACTERS, is_workload


@pytest.mark.parametrize(
    "label", ["", "code", "team-7/rag:v2", "A.b_c+d@e", "0", "x" * MAX_CHARACTERS]
)
def test_labels(label: str) -> None:
    assert is_workload(label)


@pytest.mark.parametrize(
    "label",
    ["x" * (MAX_CHARACTERS + 1), "two words", "-x", "é", "a\n", "a,b", "a'", "a&b=c", "\x00"],
)
def test_what_would_need_quoting_is_no_label(label: str) -> None:
    assert not is_workload(label)
