"""However many labels come, few are kept, and nothing is lost of the sums."""

from __future__ import annotations

import random

from gateway.evidence.labels import OTHER, LabelLimits
from gateway.evidence.sums import Tally
from tests.gateway.evidence.otlp import random_record, record


def test_the_first_labels_keep_their_names() -> None:
    labels = LabelLimits(limit=2)
    seen = [labels.limited(record({}, workload=name)).workload for name in "abcabdba"]
    assert seen == ["a", "b", OTHER, "a", "b", OTHER, "b", "a"]
    assert labels.replaced == 2


def test_no_label_is_no_label() -> None:
    labels = LabelLimits(limit=1)
    assert labels.limited(record({}, workload="")).workload == ""
    assert labels.limited(record({}, workload="a")).workload == "a"
    assert labels.limited(record({}, workload="")).workload == ""


def test_a_known_record_stays_the_same_object() -> None:
    labels = LabelLimits()
    told = record({"ngram": [(1, 1)]}, workload="a")
    assert labels.limited(told) is told


def test_each_label_has_its_own_room() -> None:
    labels = LabelLimits(limit=1)
    told = labels.limited(record({"p": [(1, 1)]}, model="m", verifier="v", workload="w"))
    assert (told.model, told.verifier, told.workload) == ("m", "v", "w")
    assert told.proposers[0].name == "p"


def test_proposers_that_become_other_are_added_up() -> None:
    labels = LabelLimits(limit=1)
    labels.limited(record({"first": [(1, 1)]}))
    told = record({"second": [(2, 1)], "first": [(3, 3)], "third": [(4, 0)]})
    limited = labels.limited(told)
    assert [(s.name, s.method) for s in limited.proposers] == [(OTHER, OTHER), ("first", "first")]
    assert limited.proposers[0].sums.num_draft_tokens == 6
    assert limited.sums == told.sums


def test_shares_still_add_up_to_the_request() -> None:
    rng = random.Random(3)
    labels = LabelLimits(limit=2)
    for _ in range(200):
        told = labels.limited(random_record(rng))
        whole = Tally()
        for share in told.proposers:
            assert share.sums.contradiction() == ""
            whole.add(share.sums, 0, 0)
        assert whole.num_draft_tokens == told.sums.num_draft_tokens
        assert whole.num_accepted_draft_tokens == told.sums.num_accepted_draft_tokens
        assert len({share.name for share in told.proposers}) == len(told.proposers)
