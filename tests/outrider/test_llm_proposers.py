"""Proposers of this process: told in order, asked as requests wish, and never a request's end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.llm_proposers import LocalProposer, LocalProposers
from outrider.speculative_options import parse_speculative_config
from proposer_service.proposers.base import Draft, Outcome, Proposer
from verifier_service.messages import Sampling, SequenceView

TEXT = [1, 2, 3, 4, 1, 2]
BOTH = [
    {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2},
    {"method": "suffix", "num_speculative_tokens": 3},
]


class Recorder(Proposer):
    """Drafts the ids 7, 8, 9, …; notes what it was told; fails where it is told to."""

    def __init__(self, *, fails: str = "") -> None:
        self.calls: list[tuple[object, ...]] = []
        self.fails = fails

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if call[0] == self.fails:
            raise RuntimeError("told to fail")

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        self._note("open", sequence_id, list(ids), prompt_length, salt)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self._note("extend", sequence_id, list(ids))

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        self._note("propose", sequence_id, max_draft_tokens)
        return Draft(tuple(range(7, 7 + max_draft_tokens)), 2, (0.5,) * max_draft_tokens)

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        return ()

    def close(self, sequence_id: int, finished: bool) -> None:
        self._note("close", sequence_id, finished)

    def settle(self) -> None:
        self._note("settle")


def view(ids: list[int], *, number: int = 1, wanted: int = 4, only: str = "") -> SequenceView:
    return SequenceView(number, ids, 3, wanted, Sampling(), cache_salt="salt", only=only)


def source(*recorders: Recorder) -> LocalProposers:
    return LocalProposers([LocalProposer(f"p{i}", "ngram", r, 3) for i, r in enumerate(recorders)])


def test_a_sequence_is_opened_once_then_extended_and_closed() -> None:
    recorder = Recorder()
    proposers, ids = source(recorder), [1, 2, 3]
    proposers.send([view(ids)], [])
    (block,) = proposers.collect()[1]
    assert (block.proposer, block.base_length, block.token_ids) == ("p0", 3, (7, 8, 9))
    assert (block.match_length, block.confidences) == (2, (0.5, 0.5, 0.5))
    ids += [4, 5]
    proposers.send([view(ids, wanted=0)], [])
    assert proposers.collect() == {}
    proposers.send([], [(1, True), (99, True)])
    proposers.send([view(ids)], [])
    told = [call for call in recorder.calls if call != ("settle",)]
    assert told == [
        ("open", 1, [1, 2, 3], 3, "salt"),
        ("propose", 1, 3),
        ("extend", 1, [4, 5]),
        ("close", 1, True),
        ("open", 1, [1, 2, 3, 4, 5], 3, "salt"),
        ("propose", 1, 3),
    ]


def test_drafts_are_collected_once_and_in_the_order_of_the_proposers() -> None:
    proposers = source(Recorder(), Recorder())
    proposers.send([view([1, 2, 3])], [])
    assert [block.proposer for block in proposers.collect()[1]] == ["p0", "p1"]
    assert proposers.collect() == {}


def test_only_the_named_proposer_is_asked() -> None:
    first, second = Recorder(), Recorder()
    proposers = source(first, second)
    proposers.send([view([1, 2, 3], only="p1")], [])
    assert [block.proposer for block in proposers.collect()[1]] == ["p1"]
    assert first.calls == [("settle",)]


@pytest.mark.parametrize("call", ["open", "extend", "propose", "close", "settle"])
def test_a_method_that_fails_costs_its_drafts_alone(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, ids = Recorder(fails=call), [1, 2, 3]
    proposers = source(broken, Recorder())
    for step in range(4):
        proposers.send([view(ids)], [(2, True)])
        assert "p1" in [block.proposer for block in proposers.collect()[1]]
        ids.append(step)
    proposers.send([], [(1, True)])
    assert proposers.states()[0].faults > 0 and proposers.states()[1].faults == 0
    assert (
        sum("told to fail" in record.exc_text for record in caplog.records if record.exc_text) == 1
    )
    broken.fails = ""
    proposers.send([view(ids)], [])
    assert [block.proposer for block in proposers.collect()[1]] == ["p0", "p1"]


def test_configs_become_proposers_under_the_names_that_serve_gives_them() -> None:
    configs = parse_speculative_config([*BOTH, BOTH[0] | {"num_speculative_tokens": 1}])
    proposers = LocalProposers.of(configs)
    assert [state.name for state in proposers.states()] == ["ngram", "suffix", "ngram-2"]
    assert [state.method for state in proposers.states()] == ["ngram", "suffix", "ngram"]
    proposers.send([view(TEXT, wanted=9)], [])
    blocks = {block.proposer: block.token_ids for block in proposers.collect()[1]}
    assert blocks == {"ngram": (3, 4), "suffix": (3, 4), "ngram-2": (3,)}
    assert [state.draft_blocks for state in proposers.states()] == [1, 1, 1]


def test_one_answer_is_drafted_from_a_finished_other_one_of_its_salt() -> None:
    proposers = LocalProposers.of(parse_speculative_config(BOTH[1]))
    first = [9, 9, 9, 21, 22, 23, 24, 25]
    proposers.send([view(first, wanted=0)], [])
    proposers.send([], [(1, True)])
    proposers.send([view([8, 8, 8, 21, 22], number=2)], [])
    assert proposers.collect()[2][0].token_ids[:1] == (23,)
    other = SequenceView(3, [8, 8, 8, 21, 22], 3, 4, Sampling(), cache_salt="another")
    proposers.send([other], [])
    assert proposers.collect() == {}


def test_options_reach_the_methods() -> None:
    strict = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4}
    proposers = LocalProposers.of(parse_speculative_config(strict))
    proposers.send([view(TEXT)], [])
    assert proposers.collect() == {}
    short = {"method": "suffix", "suffix_decoding_max_spec_factor": 0.5}
    proposers = LocalProposers.of(parse_speculative_config(short))
    proposers.send([view(TEXT)], [])
    assert proposers.collect()[1][0].token_ids == (3,)
