"""Against our own gateway and verifier: every figure there is comes from real answers."""

from __future__ import annotations

from pathlib import Path

from outrider.bench.arms import Load
from outrider.bench.client import Ask
from outrider.bench.document import point_objects
from outrider.bench.probe import DraftSource, Kind
from outrider.bench.records import CountedBy
from outrider.bench.samples import Backend, Chosen, Sample
from outrider.bench.session import Target, Wanted, run_session
from tests.interfaces.stack import K, stack


async def test_our_own_stack_is_measured_against_itself(socket_dir: Path) -> None:
    texts = ("the cat sat", "a dog and a", "12, 34; {}", "stopping 12", "true<|", "sat on")
    async with stack(socket_dir) as running:
        url = str(running.http.base_url)
        outcome = await run_session(
            Target(url),
            Wanted(
                Chosen(tuple(Sample(text, text) for text in texts)),
                Ask(Backend.COMPLETIONS, 24, {"temperature": 0.0, "ignore_eos": True}),
                (Load(max_concurrency=2),),
                ks=(2, K),
            ),
        )
        counters = (await running.http.get("/metrics")).text
    profile = outcome.profiles[url.rstrip("/")]
    assert (profile.kind, profile.drafts) == (Kind.OUTRIDER, DraftSource.RESPONSES)
    assert profile.running_usage
    assert "vllm:spec_decode_num_drafts_total" in counters
    (point,) = outcome.points
    assert [run.arm.name for run in point.runs] == ["baseline", "K=2", "K=4"]
    for run in point.runs:
        assert [record.error for record in run.records] == [""] * len(texts)
        assert {record.output_tokens for record in run.records} == {24}
        assert {record.counted_by for record in run.records} == {CountedBy.RUNNING_USAGE}
        assert all(len(record.itls()) == 23 for record in run.records)
    entries = point_objects(point, percentiles=(99,), goodput={}, repeated=False, seed=0)
    for entry, k in zip(entries, (2, 4), strict=True):
        assert entry["speedup"]["same_answers"] == len(texts)
        assert 1 < entry["spec_decode_acceptance_length"] <= 1 + k
        rates = entry["spec_decode_per_position_acceptance_rates"]
        assert all(rate == 0 for rate in rates[k:])
        assert rates[0] >= rates[1] > 0
        assert not any("not plain" in note for note in entry["notes"])
