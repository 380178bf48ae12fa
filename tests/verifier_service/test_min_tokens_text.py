"""Stop strings and min_tokens: none is looked for in the text of the tokens that there must be."""

from __future__ import annotations

import pytest

from tests.fakes import rounds
from tests.verifier_service.serving import encode
from tests.verifier_service.test_answer import World

TEXT = "one two one two one two"


@pytest.mark.parametrize("per_round", [1, 2, 5, 9])
async def test_a_stop_string_counts_from_min_tokens_on(per_round: int) -> None:
    """However many tokens come at once."""
    ids = encode(TEXT)
    wanted = len(encode("one two one"))
    for minimum, text in ((0, "one "), (wanted, "one two one "), (len(ids), TEXT)):
        world = World(stop=("two",), min_tokens=minimum)
        for output in rounds(ids, per_round=per_round):
            world.answer.take_output(output)
        messages = await world.messages()
        said = "".join(m.delta.text for m in messages if m.HasField("delta"))
        assert said == text
        assert messages[-1].finished.stop_string == ("" if text == TEXT else "two")
