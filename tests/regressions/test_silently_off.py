"""Speculation that was off, or could not be switched on, and nobody said so.

Each test's name carries the report; docs/regressions.md lists them all.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from speculation.v1 import verifier_pb2 as pb

from gateway.metrics import VerifierSnapshot
from outrider import cli
from outrider.errors import InputError
from outrider.speculative_options import resolve_speculation
from proposer_service.proposers.ngram import NgramProposer
from tests.fakes import FakeCore
from tests.regressions.bench import Bench, greedy, plain
from tests.regressions.network import ADDRESS, ProposerServer, Wire
from tests.toy import Toy
from tests.toy_engine import ToyEngine, ToySource, oracle
from tests.verifier_service.serving import serving
from verifier_service.controller import Controller
from verifier_service.core import CoreStats
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.messages import NoDrafts, Output, Request
from verifier_service.proposer_state import LinkState, ProposerState, speculation_state
from verifier_service.scheduler import Scheduler

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
WAIT_S = 60.0


@dataclass
class Place:
    """What the metrics need to know of a verifier."""

    index: int = 0
    address: str = "unix:v"
    problem: str = ""


def gauge(info: pb.GetInfoResponse) -> tuple[float, str]:
    """`outrider:speculation_on` of a verifier that said `info`, and its reason."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(VerifierSnapshot([Place()], [(Place(), info)]))  # type: ignore[list-item]
    (sample,) = (
        sample
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name == "outrider:speculation_on"
    )
    return sample.value, sample.labels["off_reason"]


def test_llamacpp_25345_one_log_line_says_that_speculation_is_off_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A draft was loaded and speculation never engaged; users asked for one line of warning."""
    caplog.set_level(logging.INFO, logger="verifier_service.loop")
    engine = ToyEngine()
    controller = Controller(4, CostTable.from_profile({1: 0.01, 33: 0.011}))
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=10,
    )
    core = Core(engine, scheduler, controller, NoDrafts(), max_waiting=10, speculative=True)
    done = threading.Event()

    def sink(output: Output) -> None:
        if output.finish_reason or output.error:
            done.set()

    core.submit(Request("a", [1, 2], greedy(200)), sink)
    assert done.wait(WAIT_S)
    core.shutdown()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("speculation ")]
    assert lines[0] == "speculation on"
    assert len(lines) >= 2
    assert all(line.startswith("speculation off: ") for line in lines[1:])
    assert len(lines) <= 4, "one line for a change, not for each step"
    assert "average gain " in lines[-1] and "plain step " in lines[-1]
    assert core.stats().speculation_state.startswith("off: ")


@pytest.mark.parametrize(
    ("links", "state"),
    [
        ([], "off: no proposer attached"),
        ([LinkState.CONNECTING], "off: no proposer can draft (p0 connecting)"),
        (
            [LinkState.REFUSED, LinkState.QUARANTINED],
            "off: no proposer can draft (p0 refused, p1 quarantined)",
        ),
        ([LinkState.REFUSED, LinkState.CONNECTED], "on"),
        ([LinkState.SLOW], "on"),
    ],
)
async def test_llamacpp_25345_the_state_is_off_while_nobody_can_draft(
    socket_dir: Path, links: list[LinkState], state: str
) -> None:
    """An idle engine would speculate; with no drafter behind it, `on` was not the truth."""

    class Proposers:
        def states(self) -> list[ProposerState]:
            return [
                ProposerState(f"p{i}", "ngram", f"unix:{i}", link) for i, link in enumerate(links)
            ]

    core = FakeCore(lambda request: [], core_stats=CoreStats(speculation_state="on"))
    async with serving(core, socket_dir, proposers=Proposers()) as client:
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    assert info.speculation_state == state
    assert gauge(info) == (float(state == "on"), state.removeprefix("on").removeprefix("off: "))


def test_llamacpp_25345_the_controllers_reason_stays() -> None:
    """Who is connected does not explain why drafts do not pay."""
    connected = ProposerState("ngram", "ngram", "unix:n", LinkState.CONNECTED).to_proto()
    reason = "off: verifying does not pay: 1 draft costs 20.0 ms"
    assert speculation_state(reason, [connected]) == reason
    assert speculation_state(reason, []) == reason
    assert gauge(pb.GetInfoResponse(num_speculative_tokens=4, speculation_state=reason)) == (
        0.0,
        "verifying does not pay",
    )


def test_llamacpp_25345_every_round_without_drafts_names_its_reason() -> None:
    """Plain rounds are counted by reason, so `/metrics` says why there were no drafts."""
    wire = Wire(ProposerServer(NgramProposer(5, 5)))
    bench = Bench(wire)
    for k in (0, None):
        bench.add(f"k{k}", PROMPT, greedy(6), num_speculative_tokens=k)
    bench.finish()
    for name in bench.outputs:
        assert all(r.off_reason for r in bench.rounds(name) if not r.drafted)
        assert not any(r.off_reason for r in bench.rounds(name) if r.drafted)
    assert {r.off_reason for r in bench.rounds("k0")[1:]} == {"request asked for no speculation"}


def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Exit code and stderr of `outrider ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0), capsys.readouterr().err


def test_llamacpp_25345_drafts_without_a_drafter_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Draft tokens were configured and the type of drafter defaulted to none: now an error."""
    code, text = command_line(
        monkeypatch,
        capsys,
        *("verifier", "x", "--listen", "unix:x", "--num-speculative-tokens", "8"),
    )
    assert code == 2
    assert text.startswith("error: --num-speculative-tokens: 8 drafts, and no --proposer")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--spec-method", "draft_model", "--spec-model", "org/draft"), "num_speculative_tokens"),
        (("--spec-method", "draft_model", "--spec-tokens", "5"), "requires model"),
        (("--spec-model", "org/draft"), "method 'draft_model' requires num_speculative_tokens"),
        (
            ("-sc", '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 5}'),
            "is not served yet by Outrider",
        ),
    ],
)
def test_vllm_31883_a_draft_option_that_cannot_work_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    """The docs took a draft model that the server refused; never is it taken and left unused."""
    code, text = command_line(monkeypatch, capsys, "serve", "x", *arguments)
    assert code == 2
    assert words in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("given", [1, 8])
def test_tensorrtllm_473_more_drafts_than_the_drafter_can_give(given: int) -> None:
    """`56 drafts > maximum 0` named neither setting: both numbers and both remedies are told."""
    wire = Wire(ProposerServer(NgramProposer(1, 3), max_draft_tokens=given), k=56)
    state = wire.state()
    assert state.state is LinkState.REFUSED
    assert f"max_draft_tokens 56: this proposer gives 1 to {given}" in state.detail
    assert "lower num_speculative_tokens or raise the proposer's max_draft_tokens" in state.detail


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("length", [4, 7, 8, 9, 16, 33])
def test_vllm_40624_prefix_hits_are_the_same_with_speculation(
    length: int, neighbours: bool
) -> None:
    """Hits fell to 0, or lost one alignment unit (vllm #54360), once speculation was on."""
    prompt = [(i * i + i // 3) % 4 for i in range(length)]
    told = []
    for source in (NoDrafts(), ToySource(oracle(Toy.target()))):
        bench = Bench(source, neighbours=neighbours)
        for name in ("first", "again"):
            bench.add(name, prompt, greedy(9))
            bench.finish()
        # What the first one said is found too, drafted or not.
        bench.add("on", [*prompt, *bench.tokens("first")], greedy(3))
        bench.finish()
        told.append([bench.outputs[name][0].cached_prompt_tokens for name in bench.outputs])
        assert bench.scheduler.prefix_cache_hits == sum(told[-1])
    without, with_drafts = told
    assert with_drafts == without
    assert without[:2] == [0, (length - 1) // 4 * 4]
    assert without[2] == (length + 9 - 1) // 4 * 4


def test_club_3090_1052_speculation_goes_on_for_as_long_as_requests_come() -> None:
    """Speculation stopped after a while: the last request drafts as the first did."""
    server = ProposerServer(NgramProposer(1, 3))
    wire = Wire(server)
    bench = Bench(wire)
    for i in range(30):
        bench.add(f"r{i}", PROMPT, greedy(14))
        bench.finish()
    first = bench.acceptance("r0")
    assert first.num_accepted_draft_tokens > 0
    assert all(bench.acceptance(name) == first for name in bench.outputs)
    assert wire.state().dropped == {}


def test_club_3090_1052_speculation_is_back_after_a_long_absence_of_the_drafter() -> None:
    """A drafter that was away for an hour drafts again for what runs then."""
    wire = Wire(ProposerServer(NgramProposer(1, 3)))
    bench = Bench(wire)
    bench.add("a", PROMPT, greedy(80))
    bench.begin()
    wire.network.kill(ADDRESS)
    for _ in range(5):
        bench.step()
    wire.settle(3600.0)
    wire.network.serve(ADDRESS, ProposerServer(NgramProposer(1, 3)))
    wire.settle(3.0)
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, greedy(80))
    assert bench.rounds("a")[-2].accepted == 4


def test_llamacpp_python_1164_speculation_is_on_without_any_option() -> None:
    """Users asked how to switch it on: it is on, and one option switches it off."""
    assert [config.method for config in resolve_speculation(None)] == ["ngram", "suffix"]
    assert resolve_speculation(None, off=True) == ()
    with pytest.raises(InputError, match="--no-speculation: cannot be combined"):
        resolve_speculation(None, off=True, tokens=4)


def test_vllm_17984_k_changes_from_request_to_request() -> None:
    """The best K falls with load: each request may bring its own, 0 too, while others run."""
    wire = Wire(ProposerServer(NgramProposer(1, 3)))
    bench = Bench(wire)
    for i, k in enumerate([4, 0, 1, None, 2, 0, 3, 9]):
        bench.add(f"r{i}", PROMPT, greedy(30), num_speculative_tokens=k)
        bench.step()
    bench.finish()
    most = [max(r.drafted for r in bench.rounds(name)) for name in bench.outputs]
    assert most == [4, 0, 1, 4, 2, 0, 3, 4]
    for name in bench.outputs:
        assert bench.tokens(name) == plain(PROMPT, greedy(30))
