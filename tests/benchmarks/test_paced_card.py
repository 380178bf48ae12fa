"""The card that computes nothing: right answers, and time as a device would take it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import card_loop, shared_card_loop
from benchmarks.paced_card import CardTimes, PacedCard
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.messages import Sampling, SequenceView

PROMPT, ANSWER = [5, 6, 7], [11, 12, 13, 14]
GREEDY = Sampling(temperature=0.0, max_tokens=50)
# So fast that nobody waits.
SCALE = 1e-6


def card() -> PacedCard:
    return PacedCard([(PROMPT, ANSWER)], 4, SCALE, vocabulary=30_000, max_model_len=512)


def chunk(ids: list[int], drafts: list[int] | None = None) -> Chunk:
    """The round behind `ids`, the prompt's among them."""
    drafts = drafts or []
    return Chunk(
        [ids[-1], *drafts],
        len(ids) - 1,
        [0],
        len(drafts),
        True,
        GREEDY,
        sequence_ids=ids,
        prompt_length=len(PROMPT),
    )


def busy(device: PacedCard) -> float:
    seconds = device.device_busy_s()
    assert seconds is not None
    return seconds / SCALE


def test_it_says_what_was_recorded_and_goes_on_behind_it() -> None:
    device, ids = card(), [*PROMPT]
    for _ in range(6):
        (verdict,) = device.run([chunk(ids)])
        assert verdict is not None
        ids += verdict.tokens
    assert ids[:7] == [*PROMPT, *ANSWER]
    assert all(1000 <= token < 21_000 for token in ids[7:])


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        ([12, 13], Verdict(2, [12, 13, 14])),
        ([12, 99, 14], Verdict(1, [12, 13])),
        ([99], Verdict(0, [12])),
    ],
)
def test_drafts_are_held_against_the_recording(drafts: list[int], said: Verdict) -> None:
    assert card().run([chunk([*PROMPT, 11], drafts)]) == [said]


def test_a_prompt_is_read_and_answered() -> None:
    device = card()
    first = replace(chunk([*PROMPT]), ids=[*PROMPT], start=0)
    assert device.run([first]) == [Verdict(0, [11])]
    # As its shape, which has 64 tokens.
    assert busy(device) == pytest.approx(4.40e-3 + 64 * 13.5e-6)


def test_a_step_takes_what_the_table_says() -> None:
    times = CardTimes()
    assert times.seconds(1, 1, 0) == pytest.approx(4.40e-3)
    assert times.seconds(32, 32, 0) == pytest.approx(5.29e-3)
    assert times.seconds(20, 20, 0) == pytest.approx((4.59e-3 + 5.29e-3) / 2)
    assert times.seconds(8, 40, 0) == pytest.approx(4.59e-3 + 32 * 17.5e-6)
    # 608 tokens are captured as 640, 2,100 not at all.
    assert times.seconds(8, 8, 600) == pytest.approx(4.59e-3 + 512 * 13.5e-6 + 120 * 21.5e-6)
    assert times.seconds(8, 8, 2092) == pytest.approx(4.59e-3 + 512 * 13.5e-6 + 1580 * 21.5e-6)
    assert card().step_seconds(8, 8) == pytest.approx(SCALE * 4.59e-3)


@pytest.mark.parametrize("sure", [False, True])
def test_what_was_begun_ahead_is_not_computed_twice(sure: bool) -> None:
    device, ids = card(), [*PROMPT, 11]
    for _ in range(3):
        (verdict,) = device.run([chunk(ids)], goes_on=lambda _: True, sure=sure)
        assert verdict is not None
        ids += verdict.tokens
    # Three steps, and the one that was begun behind them.
    assert busy(device) == pytest.approx(4 * 4.40e-3)
    # Drafts were not what was begun: that step is lost.
    device.run([chunk(ids, [1])])
    assert busy(device) == pytest.approx(5 * 4.40e-3 + 26e-6)


@pytest.mark.parametrize("sure", [False, True])
def test_a_prompt_that_joins_is_read_once(sure: bool) -> None:
    device, ids = card(), [*PROMPT, 11]
    new = replace(chunk([*PROMPT]), ids=[*PROMPT], start=0, blocks=[1])
    (verdict,) = device.run([chunk(ids)], goes_on=lambda _: True, sure=sure, joining=lambda: [new])
    assert verdict is not None
    ids += verdict.tokens
    together = 4.40e-3 + 63 * 13.5e-6
    assert busy(device) == pytest.approx(4.40e-3 + together)
    assert device.run([chunk(ids), new]) == [Verdict(0, [13]), Verdict(0, [11])]
    assert busy(device) == pytest.approx(4.40e-3 + together)


def test_a_prompt_that_was_not_recorded_is_named() -> None:
    with pytest.raises(ValueError, match="a prompt of 3 ids that has no recorded answer"):
        card().run([chunk([1, 2, 3, 4])])


def test_costs_are_the_cards(tmp_path: Path) -> None:
    device = card()
    costs = card_loop.costs_of(device)
    assert costs.seconds(40, 8, 8 * 256) == pytest.approx(device.step_seconds(8, 40))
    assert costs.seconds(32, 32, 32 * 256) == pytest.approx(device.step_seconds(32, 32))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"prompt_token_ids": [1]}', "no json"])
def test_traffic_that_cannot_be_replayed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"traffic\.jsonl"):
        card_loop.read(path)


def test_the_loop_runs_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "traffic.jsonl"
    rows = [
        {"prompt_token_ids": [n, 8, 9, 8, 9], "output_token_ids": [8, 9] * 40}
        for n in range(20, 24)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["card_loop", str(path), "--methods=ngram", "--clients=2", "--scale=0.5"]
    arguments += ["--seconds=0.3", "--settle=0", "--turns=1", "--new-tokens=64"]
    monkeypatch.setattr("sys.argv", arguments)
    assert card_loop.main() == 0
    said = capsys.readouterr().out
    assert "== ngram, 2 clients: " in said
    assert "0.00 accepted a drafted round" not in said


def test_the_loop_runs_beside_a_draft_model_on_the_same_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "traffic.jsonl"
    row = {"prompt_token_ids": [20, 8, 9], "output_token_ids": [8, 9] * 40}
    path.write_text(json.dumps(row) + "\n")
    arguments = ["shared_card_loop", str(path), "--right=1", "--clients=1", "--scale=0.5"]
    arguments += ["--seconds=0.3", "--settle=0", "--new-tokens=64"]
    monkeypatch.setattr("sys.argv", arguments)
    before = sys.getswitchinterval()
    try:
        assert shared_card_loop.main() == 0
    finally:
        sys.setswitchinterval(before)
    said = capsys.readouterr().out
    assert "right 1, 1 clients: " in said
    assert " 0 waits" not in said


def test_a_shared_card_is_slower_while_somebody_else_computes() -> None:
    texts = {(1, 2): [1, 2, 10, 11, 12, 13, 14, 15]}
    card = shared_card_loop.SharedCard(
        [([1, 2], [10, 11, 12, 13, 14, 15])], 1, 1.0, vocabulary=100, max_model_len=512
    )
    source = shared_card_loop.SharingSource(card, texts, 1.0, 30.0)
    alone = card.step_seconds(1, 1)
    view = SequenceView(1, [1, 2], 2, 4, Sampling())
    source.send([view], [])
    assert card.step_seconds(1, 1) == pytest.approx(alone + shared_card_loop.STEP_BESIDE)
    # Nothing of the answer is there yet.
    assert source.behind([(1, [10])]) == (0, 1)
    assert source.foreseen([view]).unknown == 1
    card.until = 0.0
    assert source.behind([(1, [10])]) == (1, 0)
    assert source.behind([(1, [11])]) == (0, 1)
    later = SequenceView(1, [1, 2, 10], 2, 4, Sampling())
    (rest,) = source.foreseen([later]).stopgaps[1]
    assert (rest.base_length, rest.token_ids, rest.lookahead_hit) == (3, (11, 12, 13), True)
