"""What the page's modules compute, asked of them directly in the browser."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.dashboard.conftest import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRANSCRIPT = """async (chunks) => {
  const { Transcript } = await import("/dashboard/transcript.js");
  const transcript = new Transcript();
  const steps = chunks.map((chunk) => transcript.take(chunk).length);
  return { steps, rounds: transcript.rounds, origins: transcript.origins(), text: transcript.text };
}"""

SUMS = """async ([samples, verifier, since, width]) => {
  const { moments, windowOf } = await import("/dashboard/sums.js");
  const whole = windowOf(samples, verifier, since);
  return {
    length: whole.all.length, rate: whole.all.rate, wait: whole.all.mean("draft_wait"),
    tokens: whole.perSecond("generation_tokens"), off: [...whole.all.off],
    moments: moments(samples, verifier, since, width)
      .map((m) => [m.t, m.all.steps, m.perSecond("generation_tokens")]),
  };
}"""

STRIP = """async (round) => {
  const { blocks, sentence } = await import("/dashboard/strip.js");
  return { blocks: blocks(round), told: sentence(round, 3) };
}"""

BARS = """async (count) => {
  const { BarChart } = await import("/dashboard/bar-chart.js");
  const { percent } = await import("/dashboard/format.js");
  const chart = new BarChart("t", "", { format: (v) => percent(v), ceiling: 1 });
  chart.figure.style.width = "300px";
  document.querySelector("main").append(chart.figure);
  chart.update(Array.from({ length: count }, (_, i) => ({ label: `${i}`, value: 1 })), [], []);
  const boxes = [...chart.figure.querySelectorAll(".value")].map((text) => {
    const { left, right } = text.getBoundingClientRect();
    return { text: text.textContent, left, right };
  });
  chart.figure.remove();
  return boxes;
}"""
FORMAT = """async () => {
  const f = await import("/dashboard/format.js");
  return [f.short(1234.5), f.short(0.5), f.short(41.96), f.percent(0.5), f.percent(null),
    f.fixed(NaN), f.milliseconds(12345), f.milliseconds(0.63), f.age(4.25), f.age(125),
    f.plural(1, "token")];
}"""


def round_(**changes: Any) -> dict[str, Any]:
    told = {"base": 0, "offered": 0, "drafted": 0, "accepted": 0, "emitted": 1, "proposer": None}
    return {**told, "draft_token_ids": [], "lookahead_hit": False, **changes}


def chunk(texts: list[bytes], *rounds: dict[str, Any], content: str = "") -> dict[str, Any]:
    entries = [{"token": "", "logprob": -0.1, "bytes": list(text)} for text in texts]
    choice = {"delta": {"content": content}, "logprobs": {"content": entries}}
    return {"choices": [choice], "speculative_decoding": {"rounds": list(rounds)}}


async def test_rounds_that_come_in_one_chunk_are_numbered_on(tab: Watched) -> None:
    page = await tab.open()
    together = chunk([b"b", b"c", b"d"], round_(base=1, emitted=2), round_(base=3), content="bcd")
    told = await page.evaluate(
        TRANSCRIPT, [chunk([b"a"], round_()), together, chunk([b"e"], round_(base=4))]
    )
    assert told["steps"] == [1, 2, 1]
    assert [found["number"] for found in told["rounds"]] == [1, 2, 3, 4]


async def test_tokens_belong_to_whoever_guessed_them(tab: Watched) -> None:
    page = await tab.open()
    half = "ü".encode()
    told = await page.evaluate(
        TRANSCRIPT,
        [
            chunk([b"a"], round_(), content="a"),
            # A chunk without text, whose tokens come with the next.
            {
                "choices": [],
                "speculative_decoding": {
                    "rounds": [
                        round_(
                            base=1,
                            drafted=3,
                            accepted=2,
                            emitted=3,
                            proposer="ngram",
                            draft_token_ids=[7, 8, 9],
                        )
                    ]
                },
            },
            chunk([half[:1], half[1:], b"c"], content="üc"),
            # The answer ends inside a draft: what is behind its end was not rejected.
            chunk(
                [b"d"],
                round_(
                    base=4,
                    drafted=2,
                    accepted=1,
                    emitted=1,
                    proposer="suffix",
                    draft_token_ids=[5, 6],
                ),
                content="d",
            ),
        ],
    )
    assert told["steps"] == [1, 0, 1, 1]
    assert told["text"] == "aücd"
    first, second, third = told["rounds"]
    assert [t["drafted"] for t in first["tokens"]] == [False]
    # A character stands with its last token.
    assert [(t["text"], t["drafted"]) for t in second["tokens"]] == [
        ("", True),
        ("ü", True),
        ("c", False),
    ]
    assert second["rejected"] == [9]
    assert second["cut"] is False
    assert third["cut"] is True
    assert told["origins"] == {
        "counts": [[None, 2], ["ngram", 2], ["suffix", 1]],
        "rejected": 1,
    }


def part(tokens: int, steps: int, drafted: int, accepted: int, dt: float = 1.0) -> dict[str, Any]:
    return {
        "dt": dt,
        "generation_tokens": tokens,
        "prompt_tokens": 0,
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        "proposers": {"ngram": [steps, drafted, accepted]},
        "times": {"draft_wait": [steps, steps * 0.004]},
        "lookahead": [0, 0],
        "off": {"prefill": 1},
        "running": 1,
        "waiting": 0,
    }


async def test_figures_of_a_window_are_figures_of_its_sums(tab: Watched) -> None:
    page = await tab.open()
    samples = [
        {"t": 1.0, "verifiers": {"a": part(500, 90, 100, 90)}},
        {"t": 11.0, "verifiers": {"a": part(10, 2, 8, 1), "b": part(40, 1, 1, 1, dt=2.0)}},
        {"t": 12.0, "verifiers": {}},
        {"t": 13.0, "verifiers": {"a": part(20, 2, 2, 2)}},
    ]
    both = await page.evaluate(SUMS, [samples, "", 10.0, 10])
    # 1 + 4 / 5, not the mean of the samples' lengths; tokens a second of each, added up.
    assert both["length"] == 1.8
    assert both["rate"] == 4 / 11
    assert both["wait"] == 4.0
    assert both["tokens"] == 30 / 2 + 40 / 2
    assert both["off"] == [["prefill", 3]]
    assert both["moments"] == [[15, 5, 35]]
    one = await page.evaluate(SUMS, [samples, "b", 10.0, 2])
    assert one["length"] == 2.0
    assert one["moments"] == [[11, 1, 20]]
    none = await page.evaluate(SUMS, [samples, "", 20.0, 2])
    assert none["length"] is none["rate"] is none["wait"] is None
    assert none["tokens"] == 0


async def test_a_strips_blocks_and_its_sentence(tab: Watched) -> None:
    page = await tab.open()
    record = {
        **round_(
            base=4, accepted=1, emitted=2, proposer="ngram", draft_wait_ms=0.3, verify_ms=31.0
        ),
        "verified": 3,
        "draft_texts": [" a", " b", " c"],
        "emitted_texts": [" a", " x"],
    }
    told = await page.evaluate(STRIP, record)
    assert told["blocks"] == [
        {"kind": "accepted", "text": " a"},
        {"kind": "rejected", "text": " b"},
        {"kind": "rejected", "text": " c"},
        {"kind": "emitted", "text": " x"},
    ]
    assert (
        "Round 3 at token 4: ngram drafted 3 tokens, 1 accepted; 2 tokens emitted" in told["told"]
    )
    plain = await page.evaluate(
        STRIP, {**round_(off_reason="prefill"), "verified": 0, "verify_ms": 1.0}
    )
    assert plain["blocks"] == [{"kind": "emitted", "text": None}]
    assert "no drafts: prefill" in plain["told"]


async def test_drafts_behind_an_answers_end_are_no_failures(tab: Watched) -> None:
    page = await tab.open()
    record = {
        **round_(base=4, accepted=2, emitted=2, proposer="ngram", verify_ms=31.0),
        "verified": 4,
        "draft_texts": [" a", " b", " c", " d"],
        "emitted_texts": [" a", " b"],
    }
    told = await page.evaluate(STRIP, record)
    assert [block["kind"] for block in told["blocks"]] == ["accepted", "accepted", "cut", "cut"]
    assert "2 accepted, the rest behind the answer’s end; 2 tokens emitted" in told["told"]


@pytest.mark.parametrize(("bars", "shown"), [(3, "100 %"), (8, "100"), (16, "")])
async def test_values_on_bars_do_not_run_into_each_other(
    tab: Watched, bars: int, shown: str
) -> None:
    page = await tab.open()
    boxes = await page.evaluate(BARS, bars)
    assert {box["text"].replace("\u00a0", " ").replace("\u202f", " ") for box in boxes} == {shown}
    assert all(a["right"] <= b["left"] for a, b in pairwise(boxes))


async def test_numbers_read_well(tab: Watched) -> None:
    page = await tab.open()
    assert await page.evaluate(FORMAT) == [
        *("1,235", "0.5", "42", "50 %", "–", "–"),
        *("12.3 s", "0.63 ms", "4.3 s", "2 min 5 s", "1 token"),
    ]
