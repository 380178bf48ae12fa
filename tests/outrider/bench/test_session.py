"""Whole sessions against fake servers, in virtual time: every figure is known beforehand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from outrider.bench.arms import Arm, Load
from outrider.bench.client import Ask
from outrider.bench.document import point_objects
from outrider.bench.notes import point_notes
from outrider.bench.probe import DraftSource, Kind
from outrider.bench.records import Record
from outrider.bench.samples import Backend, Chosen, Sample
from outrider.bench.session import Outcome, Target, Wanted, run_session
from outrider.errors import InputError, OperationError
from tests.outrider.bench.fake_server import DRAFTED, PLAIN, FakeServer, Script
from tests.outrider.bench.virtual import StreamingTransport, run

URL, PLAIN_URL = "http://fake:1", "http://plain:1"


def session(
    fake: FakeServer,
    *,
    prompts: int = 4,
    plain: FakeServer | None = None,
    loads: tuple[Load, ...] = (Load(max_concurrency=1),),
    done: list[tuple[str, int]] | None = None,
    baseline: bool = True,
    model: str | None = None,
    seed: int | None = None,
    **wanted: Any,
) -> Outcome:
    transports = {URL: StreamingTransport(fake.app)}
    if plain is not None:
        transports[PLAIN_URL] = StreamingTransport(plain.app)

    def on_done(arm: Arm, record: Record) -> None:
        if done is not None:
            done.append((arm.name, record.index))

    return run(
        run_session(
            Target(
                URL,
                baseline_url=PLAIN_URL if plain is not None else None,
                model=model,
                baseline=baseline,
                transports=transports,
            ),
            Wanted(
                Chosen(tuple(Sample(f"s{i}", f"prompt {i}") for i in range(prompts))),
                Ask(Backend.CHAT, 16, seed=seed),
                loads,
                **wanted,
            ),
            on_done=on_done,
        )
    )


def objects(outcome: Outcome, **more: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {
        "percentiles": (99,),
        "goodput": {},
        "repeated": False,
        "seed": 0,
        **more,
    }
    return [entry for point in outcome.points for entry in point_objects(point, **settings)]


def test_our_own_server_is_its_own_baseline() -> None:
    (entry,) = objects(session(FakeServer()))
    # Plain: 1 s and five times 0.5 s; drafted: 1 s and twice 0.5 s for the same six tokens.
    assert entry["arm"] == "speculation"
    assert entry["duration"] == pytest.approx(4 * 2.0)
    assert entry["baseline"]["duration"] == pytest.approx(4 * 3.5)
    assert entry["output_throughput"] == pytest.approx(3.0)
    assert entry["mean_tpot_ms"] == pytest.approx(200)
    assert entry["baseline"]["mean_tpot_ms"] == pytest.approx(500)
    speedup = entry["speedup"]
    assert speedup["output_throughput"]["value"] == pytest.approx(1.75)
    assert speedup["tpot"]["value"] == pytest.approx(2.5)
    assert speedup["ttft"]["value"] == pytest.approx(1.0)
    assert speedup["e2el"]["value"] == pytest.approx(1.75)
    assert (speedup["same_answers"], speedup["compared_answers"]) == (4, 4)
    assert entry["spec_decode_acceptance_length"] == pytest.approx(2.5)
    assert entry["spec_decode_acceptance_rate"] == pytest.approx(37.5)
    assert entry["spec_decode_per_position_acceptance_rates"] == [1.0, 0.5, 0.0, 0.0]
    assert "spec_decode_num_drafts" not in entry["baseline"]
    assert entry["spec_decode_source"] == DraftSource.RESPONSES.value


def test_arms_take_turns_and_the_first_one_rotates() -> None:
    done: list[tuple[str, int]] = []
    session(FakeServer(), prompts=3, done=done)
    assert done == [
        *[("baseline", 0), ("speculation", 0)],
        *[("speculation", 1), ("baseline", 1)],
        *[("baseline", 2), ("speculation", 2)],
    ]


def test_arms_never_run_at_once() -> None:
    fake = FakeServer()
    outcome = session(fake, prompts=8, loads=(Load(max_concurrency=2),))
    (point,) = outcome.points
    spans = sorted(
        (block.began, block.began + block.duration) for run in point.runs for block in run.blocks
    )
    assert len(spans) == 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert {run.blocks[0].peak for run in point.runs} == {2}


def test_each_arm_asks_in_its_own_way_and_finds_the_cache_cold() -> None:
    fake = FakeServer()
    session(fake, prompts=2, num_warmups=1, ks=(2, 4), proposer="ngram", seed=50)
    warm, measured = fake.bodies[1:4], fake.bodies[4:]
    assert ["Count from one" in body["messages"][0]["content"] for body in warm] == [True] * 3
    asked = [body["speculative_decoding"] for body in measured[:3]]
    assert asked == [
        {"enabled": False},
        {"num_speculative_tokens": 2, "proposer": "ngram"},
        {"num_speculative_tokens": 4, "proposer": "ngram"},
    ]
    salts = [body["cache_salt"] for body in measured]
    assert len(set(salts)) == 6
    assert "cache_salt" not in warm[0]
    assert [body["seed"] for body in measured] == [50] * 3 + [51] * 3


def test_arms_may_share_the_cache_when_told_to() -> None:
    fake = FakeServer()
    session(fake, cold=False)
    assert not any("cache_salt" in body for body in fake.bodies)


def test_loads_are_points() -> None:
    loads = (Load(max_concurrency=1), Load(max_concurrency=4), Load(request_rate=0.5))
    entries = objects(session(FakeServer(), prompts=8, loads=loads, ks=(2, 4)))
    assert [(e["max_concurrency"], e["request_rate"], e["arm"]) for e in entries] == [
        *[(1, "inf", "K=2"), (1, "inf", "K=4")],
        *[(4, "inf", "K=2"), (4, "inf", "K=4")],
        *[(None, 0.5, "K=2"), (None, 0.5, "K=4")],
    ]
    assert [entry["max_concurrent_requests"] for entry in entries][:4] == [1, 1, 4, 4]


def test_a_rate_is_kept_by_both_arms_alike() -> None:
    fake = FakeServer()
    outcome = session(fake, prompts=20, loads=(Load(request_rate=2.0, burstiness=0.5),))
    plain, drafted = outcome.points[0].runs
    for one, other in zip(plain.blocks, drafted.blocks, strict=True):
        assert [r.sent - one.began for r in one.records] == pytest.approx(
            [r.sent - other.began for r in other.records]
        )
    assert math.isinf(Load().request_rate)


def test_a_foreign_server_has_no_baseline_and_that_is_said() -> None:
    fake = FakeServer(owner="vllm")
    outcome = session(fake)
    (entry,) = objects(outcome)
    assert (entry["baseline"], entry["speedup"]) == (None, None)
    assert any("--baseline-url" in note for note in outcome.notes)
    assert not any("speculative_decoding" in body for body in fake.bodies)
    assert all("cache_salt" in body for body in fake.bodies[2:])


def test_a_second_server_is_the_baseline_of_a_foreign_one() -> None:
    plain = FakeServer(owner="vllm", script_of=lambda body: PLAIN, metrics=False)
    outcome = session(FakeServer(owner="vllm", script_of=lambda body: DRAFTED), plain=plain)
    (entry,) = objects(outcome)
    assert entry["baseline"]["url"] == PLAIN_URL
    assert entry["speedup"]["output_throughput"]["value"] == pytest.approx(1.75)
    assert outcome.notes == ()
    assert set(outcome.profiles) == {URL, PLAIN_URL}


def test_counters_tell_acceptance_where_responses_do_not() -> None:
    plain = FakeServer(owner="vllm", script_of=lambda body: PLAIN, metrics=False, counters=True)
    fake = FakeServer(owner="vllm", script_of=lambda body: DRAFTED, metrics=False, counters=True)
    outcome = session(fake, plain=plain, num_warmups=3)
    (entry,) = objects(outcome)
    # Four prompts of two steps; the probe and the warm-ups are not among them.
    assert entry["spec_decode_num_drafts"] == 8
    assert entry["spec_decode_per_position_acceptance_rates"] == [1.0, 0.5, 0.0, 0.0]
    assert entry["spec_decode_source"] == DraftSource.COUNTERS.value
    assert any("/metrics before and after" in note for note in entry["notes"])


def test_a_server_that_tells_nothing_of_drafts() -> None:
    outcome = session(FakeServer(owner="x", metrics=False))
    (entry,) = objects(outcome)
    assert "spec_decode_num_drafts" not in entry
    # Each prompt was asked once: there is nothing to find in a cache.
    assert not any("cache_salt" in note for note in entry["notes"])
    (again,) = objects(outcome, repeated=True)
    assert any("cache_salt" in note for note in again["notes"])


def test_a_server_without_running_usage_is_asked_without_it() -> None:
    fake = FakeServer(refuses_running_usage=True)
    (entry,) = objects(session(fake))
    assert "continuous_usage_stats" in fake.bodies[0]["stream_options"]
    assert not any("continuous_usage_stats" in b["stream_options"] for b in fake.bodies[1:])
    assert entry["total_output_tokens"] == 24
    assert any("times between chunks" in note for note in entry["notes"])
    # Three chunks of six tokens: the total is the usage's, the times are the chunks'.
    assert entry["mean_itl_ms"] == pytest.approx(500)
    assert entry["mean_tpot_ms"] == pytest.approx(200)


def test_failures_are_counted_and_shown_and_in_no_figure() -> None:
    def script(body: dict[str, Any]) -> Script:
        fails = body["messages"][0]["content"] == "prompt 2" and "cache_salt" in body
        return Script(status=500, error="boom") if fails else DRAFTED

    (entry,) = objects(session(FakeServer(script_of=script)))
    assert (entry["completed"], entry["failed"]) == (3, 1)
    assert entry["errors"] == [{"error": "HTTP 500: boom", "count": 1}]
    assert entry["speedup"]["compared_answers"] == 3
    assert any("1 of 4 requests failed" in note for note in entry["notes"])
    # Blocks in which both arms answered everything.
    assert (
        entry["speedup"]["output_throughput"]["spread"]
        == "lowest and highest of 3 blocks of prompts"
    )


def test_an_arm_that_is_refused_ends_the_session() -> None:
    def script(body: dict[str, Any]) -> Script:
        asked = body.get("speculative_decoding", {}).get("num_speculative_tokens")
        return Script(status=400, error="too many") if asked == 99 else DRAFTED

    with pytest.raises(OperationError, match="no request of the arm K=99: HTTP 400: too many"):
        session(FakeServer(script_of=script), ks=(2, 99))


def test_an_arm_that_answers_nothing_ends_the_session() -> None:
    def script(body: dict[str, Any]) -> Script:
        return Script(status=500, error="boom") if "cache_salt" in body else DRAFTED

    with pytest.raises(OperationError, match=r"all 4 requests of the arm baseline failed.*boom"):
        session(FakeServer(script_of=script))


def test_a_baseline_that_drafts_is_denounced() -> None:
    (entry,) = objects(session(FakeServer(script_of=lambda body: DRAFTED)))
    assert "The baseline was not plain: its answers report draft tokens." in entry["notes"]


def test_other_answers_are_counted() -> None:
    def script(body: dict[str, Any]) -> Script:
        plain = body.get("speculative_decoding", {}).get("enabled") is False
        other = "prompt 1" in body["messages"][0]["content"]
        return Script(text="x " if plain and other else "w ")

    (entry,) = objects(session(FakeServer(script_of=script)))
    assert entry["speedup"]["same_answers"] == 3


def test_a_wrong_model_names_the_served_ones() -> None:
    with pytest.raises(InputError, match=r"'toi' is not served at .*; it serves toy; did you mean"):
        session(FakeServer(), model="toi")


@pytest.mark.parametrize(
    ("wanted", "option"),
    [({"ks": (3,)}, "--num-speculative-tokens: 3"), ({"proposer": "ngram"}, "--proposer: 'ngram'")],
)
def test_a_foreign_server_takes_no_k(wanted: Any, option: str) -> None:
    with pytest.raises(InputError, match=f"{option} cannot be asked.*--serve-cmd"):
        session(FakeServer(owner="vllm"), **wanted)


def test_a_server_that_refuses_the_first_request_says_why() -> None:
    fake = FakeServer(script_of=lambda body: Script(status=400, error="no chat template"))
    with pytest.raises(OperationError, match="refuses the first request: HTTP 400: no chat templ"):
        session(fake)


def test_profiles_tell_servers_apart() -> None:
    kinds = [
        session(FakeServer(owner=owner), prompts=1, baseline=False).profiles[URL].kind
        for owner in ("outrider", "vllm", "llama.cpp")
    ]
    assert kinds == [Kind.OUTRIDER, Kind.VLLM, Kind.OTHER]


def test_goodput_counts_what_keeps_every_limit() -> None:
    (entry,) = objects(session(FakeServer()), goodput={"ttft": 1.5, "tpot": 0.3})
    assert entry["request_goodput"] == pytest.approx(4 / 8)
    assert entry["baseline"]["request_goodput"] == 0


def test_details_are_kept_when_asked_for() -> None:
    (entry,) = objects(session(FakeServer()), detailed=True)
    assert len(entry["requests"]) == len(entry["baseline"]["requests"]) == 4
    first = entry["requests"][0]
    assert (first["sample"], first["output_len"], first["ttft"]) == ("s0", 6, 1.0)
    assert (first["drafted"], first["accepted"]) == (8, 3)


def test_repetition_is_said() -> None:
    outcome = session(FakeServer(), loads=(Load(max_concurrency=1, runs=2),))
    (entry,) = objects(outcome)
    assert entry["completed"] == 8
    assert any("more than once" in note for note in entry["notes"])
    assert not any(
        "more than once" in n for n in point_notes(session(FakeServer()).points[0], False)
    )


def test_a_server_that_drafts_nothing_is_told_of() -> None:
    (entry,) = objects(session(FakeServer(script_of=lambda body: PLAIN)))
    assert any("the server drafted nothing, in none of 4 answers" in n for n in entry["notes"])
    assert entry["spec_decode_per_position_rates_of_reached"] is None
