"""Rounds and prompts too many for a capture in one forward: same verdicts as in any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.verifier_service.engines.paged import paged_engine
from tests.verifier_service.engines.test_batch_invariant_forward import llama_folder
from tests.verifier_service.engines.test_batch_invariant_pages import invariant_engine
from tests.verifier_service.engines.test_graphs import PROMPTS, RANDOM, table, verify
from tests.verifier_service.engines.test_prefill_graphs import (
    FILTERED,
    SMALL,
    read,
    right_drafts,
)
from tests.verifier_service.engines.test_torch_engine import GREEDY, any_model, engine, llama
from verifier_service.engines import eager_steps, layout
from verifier_service.engines.base import CacheShape, Chunk, Verdict, no_more
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.graphs import GraphRunner, Launched
from verifier_service.engines.layout import StepTensors, pack
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import RejectionRule, Sampling

__all__ = ["any_model", "llama", "llama_folder"]

# Behind a capture of two tokens everything with a prompt is long; more than six are the device's.
FEW = SMALL | {"max_captured_prefill_tokens": 2, "max_num_seqs": 5}
FIRST = [read(row, PROMPTS[row][:-1], GREEDY) for row in range(2)]
MIXED = [
    verify(0, PROMPTS[0], [3, 4], RANDOM),
    read(2, PROMPTS[2], FILTERED),
    verify(1, PROMPTS[1], [], GREEDY),
    read(4, PROMPTS[4], GREEDY, 0, 3),
]


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_steps, "_BOUND_BY_HOST", {False: 6, True: 3})


@pytest.fixture(params=["spans", "pages"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Attention as a CPU's layout has it, or through the tables of a GPU's."""
    if request.param == "pages":
        monkeypatch.setattr(layout, "_in_pages", lambda device: True)
    return str(request.param)


def joined(target: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> TorchEngine:
    """An engine that fails where it would replay a forward."""
    monkeypatch.setattr(GraphRunner, "launch", None)
    return target


def run(
    target: TorchEngine, monkeypatch: pytest.MonkeyPatch, mixed: list[Chunk]
) -> Sequence[object]:
    target.run(FIRST)
    with monkeypatch.context() as patched:
        return joined(target, patched).run(mixed)


def test_every_architecture_says_the_same_in_one_forward(
    any_model: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = paged_engine(any_model, monkeypatch, **FEW)
    with monkeypatch.context() as patched:
        patched.setattr(layout, "_in_pages", lambda device: False)
        plain = engine(any_model, max_num_seqs=5)
        plain.run(FIRST)
        wanted = [verdict for chunk in MIXED for verdict in plain.run([chunk])]
    assert run(target, monkeypatch, MIXED) == wanted


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM, FILTERED])
def test_drafts_are_accepted_beside_a_prompt_and_decoding_goes_on(
    llama: Path, kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(layout, "_in_pages", lambda device: False)
        drafts = right_drafts(engine(llama), sampling)
        ids = [*PROMPTS[0], *drafts]
        (last,) = engine(llama).run([replace(read(0, ids, sampling))])
    target = paged_engine(llama, monkeypatch, **FEW)
    target.run(FIRST)
    with monkeypatch.context() as patched:
        # The choice is the captured one, on the logits of the forward that was not.
        patched.setattr(Chooser, "begin", None)
        mixed = [verify(0, PROMPTS[0], drafts, sampling), read(2, PROMPTS[2], RANDOM)]
        verdict, other = joined(target, patched).run(mixed)
    assert verdict is not None and other is not None and last is not None
    assert (verdict.accepted, verdict.tokens) == (2, [*drafts, *last.tokens])
    following = [
        verify(0, [*PROMPTS[0], *verdict.tokens], [], sampling),
        verify(2, [*PROMPTS[2], *other.tokens], [], RANDOM),
    ]
    monkeypatch.setattr(layout, "_in_pages", lambda device: False)
    plain = engine(llama)
    for chunk in following:
        ids = list(chunk.sequence_ids)
        plain.run([Chunk(ids[:-1], 0, chunk.blocks, 0, False, GREEDY)])
    assert target.run(following) == plain.run(following), "replayed"


@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
def test_other_rules_choose_on_the_logits_of_one_forward(
    llama: Path, rule: RejectionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = engine(llama, rejection_rule=rule, max_num_seqs=5)
    plain.run(FIRST)
    wanted = plain.run(MIXED)
    target = paged_engine(llama, monkeypatch, rejection_rule=rule, **FEW)
    assert run(target, monkeypatch, MIXED) == wanted


def test_masks_edits_and_log_probabilities_read_the_right_rows(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = np.zeros((2, 4), dtype=np.int32)
    mask[:, 1] = 1 << 9
    mixed = [
        replace(read(2, PROMPTS[2], replace(RANDOM, prompt_logprobs=1)), prompt_logprobs=True),
        replace(verify(0, PROMPTS[0], [41], RANDOM), mask=mask),
        read(4, PROMPTS[4], replace(GREEDY, logit_bias=((9, 90.0),))),
        verify(1, PROMPTS[1], [], replace(GREEDY, logprobs=2)),
    ]
    plain = engine(llama, max_num_seqs=5)
    plain.run(FIRST)
    wanted = plain.run(mixed)
    found = run(paged_engine(llama, monkeypatch, **FEW), monkeypatch, mixed)
    for mine, theirs in zip(found, wanted, strict=True):
        assert isinstance(mine, Verdict) and theirs is not None
        assert (mine.accepted, mine.tokens) == (theirs.accepted, theirs.tokens)
        for name in ("logprobs", "prompt_logprobs"):
            told, expected = getattr(mine, name), getattr(theirs, name)
            assert [(one.token_id, one.rank) for one in told] == [
                (one.token_id, one.rank) for one in expected
            ]
            assert [one.logprob for one in told] == pytest.approx(
                [one.logprob for one in expected], abs=1e-4
            )
    assert found[1] == Verdict(1, [41, 41])
    assert [len(v.prompt_logprobs) for v in found if isinstance(v, Verdict)] == [5, 0, 0, 0]


def test_more_drafts_than_are_captured_share_the_forward_too(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = [verify(0, PROMPTS[0], [3, 4, 5], GREEDY), read(2, PROMPTS[2], FILTERED)]
    plain = engine(llama)
    plain.run(FIRST)
    wanted = plain.run(mixed)
    assert run(paged_engine(llama, monkeypatch, **FEW), monkeypatch, mixed) == wanted


Ran = tuple[list[str], TorchEngine]


@pytest.fixture
def watched(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """What an engine does in which order, and that engine."""
    done: list[str] = []
    target = paged_engine(llama, monkeypatch, **FEW)
    target.run(FIRST)
    forward = target._eager.chosen.forward

    def noted(step: StepTensors) -> Tensor:
        done.append("forward")
        return forward(step)

    def noting(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*given: object) -> object:
            done.append(name)
            return function(*given)

        return wrapped

    chosen = replace(target._eager.chosen, forward=noted)
    monkeypatch.setattr(target, "_eager", replace(target._eager, chosen=chosen))
    for name in ("launch", "choose"):
        monkeypatch.setattr(GraphRunner, name, noting(name, getattr(GraphRunner, name)))
    monkeypatch.setattr(Launched, "verdicts", noting("verdicts", Launched.verdicts))
    return done, target


def test_the_host_goes_on_when_the_device_has_all_its_work(watched: Ran) -> None:
    done, target = watched
    target.run(MIXED, meanwhile=lambda: done.append("meanwhile"))
    assert done == ["forward", "choose", "meanwhile", "verdicts"]


def test_where_launching_takes_longer_the_host_does_the_rest_first(watched: Ran) -> None:
    done, target = watched
    target.run([read(2, PROMPTS[2], RANDOM)], meanwhile=lambda: done.append("meanwhile"))
    assert done == ["meanwhile", "forward"]
    done.clear()
    few = [verify(0, PROMPTS[0], [], RANDOM), read(4, PROMPTS[4], GREEDY)]
    target.run(few, meanwhile=lambda: done.append("meanwhile"))
    assert done == ["launch", "meanwhile", "forward", "verdicts"], "too few to share a forward"


def test_a_long_prompt_runs_while_begun_rounds_are_not_read(llama: Path, watched: Ran) -> None:
    """What was begun is neither computed again nor waited for before the prompt is launched."""
    done, target = watched
    going = replace(GREEDY, max_tokens=100)
    ids = list(PROMPTS[0])
    (verdict,) = target.run([verify(0, ids, [], going)], goes_on=lambda _: True)
    assert verdict is not None
    ids += verdict.tokens
    done.clear()
    long = read(2, [*PROMPTS[2], 1, 2], GREEDY)
    chunks = [long, verify(0, ids, [], going)]
    found = target.run(chunks, meanwhile=lambda: done.append("meanwhile"))
    assert done == ["launch", "forward", "meanwhile", "verdicts"]
    plain = engine(llama)
    plain.run(FIRST)
    plain.run([verify(0, PROMPTS[0], [], going)])
    assert found == plain.run(chunks)


def test_a_forward_that_fails_fails_the_step(watched: Ran) -> None:
    done, target = watched

    def failing(step: StepTensors) -> Tensor:
        raise RuntimeError("out of memory")

    chosen = replace(target._eager.chosen, forward=failing)
    target._eager = replace(target._eager, chosen=chosen)
    with pytest.raises(RuntimeError, match="out of memory"):
        target.run(MIXED, meanwhile=lambda: done.append("meanwhile"))
    assert done == []


class Account:
    """Launches, none of which may stand inside another."""

    def __init__(self) -> None:
        self.inside = False
        self.launches = 0

    @contextmanager
    def launch(self) -> Iterator[None]:
        assert not self.inside
        self.inside = True
        yield
        self.inside = False
        self.launches += 1


@pytest.mark.parametrize(("sampling", "launches"), [(RANDOM, 1), (replace(RANDOM, logprobs=0), 2)])
def test_forward_and_choice_are_on_the_devices_account(
    watched: Ran, sampling: Sampling, launches: int
) -> None:
    """A choice that was captured has its own entry there, by its replay."""
    _, target = watched
    account = Account()
    target._eager = replace(target._eager, device_time=account)  # type: ignore[arg-type]
    target.run([*MIXED[1:], verify(0, PROMPTS[0], [3], sampling)])
    assert account.launches == launches


def test_a_compiled_forward_is_the_devices_from_fewer_tokens_on(watched: Ran) -> None:
    _, target = watched
    steps = target._eager
    compiled = replace(steps, chosen=replace(steps.chosen, compiled=True))
    few = [read(0, PROMPTS[0], GREEDY)]
    assert compiled.is_bound_by_device(few)
    assert not steps.is_bound_by_device(few)
    assert not replace(compiled, graphs=None).is_bound_by_device(few), "nothing is captured"


def test_batch_invariant_bits_do_not_depend_on_the_prompt_beside(
    llama_folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = invariant_engine(llama_folder, monkeypatch, **FEW)
    forward = target._eager.chosen.forward
    seen: list[Tensor] = []

    def kept(step: StepTensors) -> Tensor:
        seen.append(forward(step).clone())
        return seen[-1]

    steps = replace(target._eager, chosen=replace(target._eager.chosen, forward=kept))
    for beside in ([], [read(2, PROMPTS[2], RANDOM)], [read(4, PROMPTS[4], RANDOM)]):
        target.run(FIRST)
        round_ = verify(0, PROMPTS[0], [3, 4], RANDOM)
        with torch.inference_mode():
            if beside:
                steps.run_together([round_], beside, no_more)
            else:
                steps.run([round_], no_more)
    told = [logits[:3] for logits in seen]
    assert torch.equal(told[0], told[1])
    assert torch.equal(told[0], told[2])


def test_a_layout_in_parts_bounds_queries_for_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_in_pages", lambda device: True)
    cache, cpu = CacheShape(20, 16), torch.device("cpu")

    def most(drafts: list[int]) -> int:
        rounds = [verify(row, PROMPTS[row], drafts, GREEDY) for row in range(2)]
        prompt = Chunk(list(range(40)), 0, [10, 11, 12], 0, True, GREEDY)
        step = pack([*rounds, prompt], cache, 2, cpu, 2, 2, 5)
        (count, first), (others, second) = step.layout.parts
        assert (count, others) == (2 + 2 * len(drafts), 40)
        assert first.table is not None and first.table.tolist() == [table(0), table(1)]
        assert second.table is not None and second.table.tolist() == [[10, 11, 12]]
        assert second.max_query == 40
        return first.max_query

    assert (most([]), most([1]), most([1, 2, 3, 4]), most([1, 2, 3, 4, 5])) == (1, 5, 5, 6)
