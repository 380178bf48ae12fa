"""The live panels over the whole stack: they fill, they follow, they say what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.dashboard.conftest import PATIENCE_MS, Watched
from tests.dashboard.requesting import several
from tests.interfaces.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)

FILLED = (
    "Output tokens",
    "Mean acceptance length",
    "Draft acceptance rate",
    "Draft wait and step times",
    "Accepted by position",
    "Steps by accepted drafts",
    "Look-ahead",
    "Requests at the verifiers",
)


def chart(page: Page, title: str) -> Any:
    return page.locator("figure.chart").filter(has_text=title)


async def test_every_panel_fills(tab: Watched, running: Stack) -> None:
    page = await tab.open()
    await several(running)
    for title in FILLED:
        label = chart(page, title).locator("svg[role=img]")
        await expect(label).not_to_have_attribute("aria-label", f"{title}: no data yet")
    await expect(chart(page, "Mean acceptance length").locator(".keys")).to_contain_text("toy")
    drawn = chart(page, "Steps by accepted drafts").locator("rect.bar-mark")
    await expect(drawn).to_have_count(5)
    await expect(page.locator("#states")).to_contain_text("speculation on")
    await expect(page.locator("#off")).to_contain_text("prefill")
    await tab.shoot("live-light")


async def test_the_figures_are_the_verifiers_own(tab: Watched, running: Stack) -> None:
    await several(running, 1)
    page = await tab.open()
    await page.select_option("#window-choice", "600")
    total = (await running.http.get("/metrics")).text
    steps = sum(
        float(line.rpartition(" ")[2])
        for line in total.splitlines()
        if line.startswith("vllm:spec_decode_num_drafts_total")
    )
    section = page.locator("#verifier-list")
    await expect(section).to_contain_text("toy (ngram)")
    await expect(section).to_contain_text(f"{steps:,.0f}")
    await expect(section).to_contain_text("Step cost by tokens")


async def test_numbers_stand_below_the_charts_on_demand(tab: Watched, running: Stack) -> None:
    page = await tab.open()
    await several(running, 1)
    histogram = chart(page, "Steps by accepted drafts")
    await expect(histogram.locator("table")).to_have_count(0)
    await page.get_by_role("button", name="Numbers").click()
    await expect(page.get_by_role("button", name="Numbers")).to_have_attribute(
        "aria-pressed", "true"
    )
    await expect(histogram.locator("tbody tr")).to_have_count(5)
    await expect(chart(page, "Output tokens").locator("thead")).to_contain_text("emitted")


async def test_a_lost_feed_is_said_and_found_again(tab: Watched) -> None:
    tab.expected.append("Failed to load resource")
    refusing = True

    async def gone(route: Route) -> None:
        await (route.abort() if refusing else route.continue_())

    await tab.page.route("**/v1/live", gone)
    await tab.page.goto(f"{tab.url}/dashboard")
    state = tab.page.locator("#connection")
    await expect(state).to_contain_text("the gateway cannot be reached")
    await expect(state).to_have_attribute("data-state", "lost")
    refusing = False
    await expect(state).to_have_text("live")


async def test_silence_is_a_loss_too(tab: Watched) -> None:
    page = await tab.open()
    await page.clock.install()
    hanging = []

    async def say_nothing(route: Route) -> None:
        hanging.append(route)

    await page.route("**/v1/live", say_nothing)
    await page.goto(f"{tab.url}/dashboard")
    state = page.locator("#connection")
    await expect(state).to_have_text("connecting…")
    await page.clock.fast_forward(16_000)
    await expect(state).to_contain_text("nothing came for 15 seconds")
    await page.unroute("**/v1/live")
    await page.clock.fast_forward(1_000)
    await expect(state).to_have_text("live")
    assert hanging


def verifier(address: str, **changes: Any) -> dict[str, Any]:
    sums = {
        "num_spec_steps": 4,
        "num_draft_tokens": 10,
        "num_accepted_draft_tokens": 6,
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.6,
    }
    info = {
        "model": "m",
        "version": "0",
        "engine": "torch",
        "device": "cpu",
        "dtype": "float32",
        "rule": "coupled",
        "max_model_len": 100,
        "num_speculative_tokens": 2,
        "running": 1,
        "waiting": 2,
        "kv_blocks": {"total": 10, "free": 5},
        "preemptions": 0,
        "generation_tokens": 7,
        "speculation_state": "on",
        "speculation": {"plain_step_ms": 30.0, "average_gain": 0.25},
        "step_cost_ms": {"1": 30.0, "2": 31.0},
        "off_rounds": {},
        "acceptance": {**sums, "histogram": [1, 0, 3], "accepted_per_position": [3, 3]},
        "proposers": [
            {
                "name": "ngram",
                "method": "ngram",
                "address": "unix:/n",
                "state": "slow",
                "detail": "its answers come late",
                "draft_blocks": 9,
                "dropped": {"stale": 2},
                "lookahead_hits": 3,
                "lookahead_misses": 1,
                "acceptance": sums,
            }
        ],
    }
    return {
        "address": address,
        "serves": True,
        "problem": None,
        "in_flight": 1,
        "info": {**info, **changes},
    }


def part(tokens: int, proposers: dict[str, list[int]], off: dict[str, int]) -> dict[str, Any]:
    return {
        "dt": 1.0,
        "generation_tokens": tokens,
        "prompt_tokens": 0,
        "steps": 4,
        "drafted": 8,
        "accepted": 6,
        "histogram": [1, 0, 3],
        "accepted_per_position": [3, 3],
        "proposed_per_position": [4, 4],
        "proposers": proposers,
        "times": {"draft_wait": [4, 0.002], "verify": [4, 0.12]},
        "lookahead": [3, 1],
        "off": off,
        "running": 1,
        "waiting": 2,
    }


async def told(page: Page, verifiers: list[dict[str, Any]], **more: Any) -> None:
    """The feed says this once, and then nothing for as long as the test looks."""
    sample = {"t": 1000.0, "verifiers": more.pop("parts", {})}
    snapshot = {
        "object": "live",
        "time": 1000.0,
        "interval_s": 1.0,
        "verifiers": verifiers,
        "running_total": len(more.get("running", [])),
        "running": [],
        "sample": sample,
        "history": [sample],
        **more,
    }
    body = f"data: {json.dumps(snapshot)}\n\n"

    async def answer(route: Route) -> None:
        await route.fulfill(body=body, content_type="text/event-stream")

    await page.route("**/v1/live", answer)


async def test_why_speculation_is_off_and_who_is_away(tab: Watched) -> None:
    away = {**verifier("gpu2:50051"), "serves": False, "problem": "no connection"}
    never = {**verifier("gpu3:50051"), "serves": False, "problem": "not yet", "info": None}
    off = verifier("gpu1:50051", speculation_state="off: drafts do not pay at this load")
    reasons = {"drafts do not pay": 30, "no draft arrived": 5}
    await told(tab.page, [off, away, never], parts={"gpu1:50051": part(9, {}, reasons)})
    await tab.page.goto(f"{tab.url}/dashboard")
    states = tab.page.locator("#states li")
    await expect(states).to_have_count(3)
    await expect(states.nth(0)).to_contain_text("off: drafts do not pay at this load")
    await expect(states.nth(1)).to_contain_text("is away: no connection")
    await expect(tab.page.locator("#off li").first).to_contain_text("drafts do not pay30 rounds")
    await expect(tab.page.locator("#figures")).to_contain_text("1 of 3")
    detail = tab.page.locator(".verifier").first
    await expect(detail).to_contain_text("its answers come late")
    await expect(detail).to_contain_text("stale 2")
    await expect(detail).to_contain_text("75 % of 4")


async def test_one_verifier_or_all_of_them(tab: Watched) -> None:
    parts = {
        "a:1": part(10, {"ngram": [4, 8, 6]}, {}),
        "b:2": part(30, {"suffix": [2, 4, 1]}, {}),
    }
    await told(tab.page, [verifier("a:1"), verifier("b:2")], parts=parts)
    await tab.page.goto(f"{tab.url}/dashboard")
    tokens = tab.page.locator("#figures div").first.locator("dd")
    keys = chart(tab.page, "Mean acceptance length").locator(".keys")
    await expect(tokens).to_have_text("40")
    await expect(keys).to_contain_text("ngram 2.50")
    await expect(keys).to_contain_text("suffix 1.50")
    await tab.page.select_option("#verifier-choice", "b:2")
    await expect(tokens).to_have_text("30")
    await expect(keys).not_to_contain_text("ngram")
    # Each proposer has a dash of its own beside its colour.
    line = chart(tab.page, "Mean acceptance length").locator(".keys line")
    assert await line.evaluate("(node) => getComputedStyle(node).strokeDasharray") != "none"


async def test_what_runs_now_is_listed(tab: Watched) -> None:
    running = [
        {
            "request_id": "<b>first</b>",
            "model": "m",
            "route": "/v1/completions",
            "stream": True,
            "state": "running",
            "age_s": 75.2,
            "choices": 2,
            "prompt_tokens": 12,
            "completion_tokens": 1234,
        }
    ]
    await told(tab.page, [verifier("a:1")], running=running)
    await tab.page.goto(f"{tab.url}/dashboard")
    row = tab.page.locator("#running tbody tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("<b>first</b>")
    await expect(row).to_contain_text("running, 2 choices")
    await expect(row).to_contain_text("1 min 15 s")
    await expect(row).to_contain_text("1,234")


async def test_empty_states_are_words(tab: Watched) -> None:
    await told(tab.page, [])
    await tab.page.goto(f"{tab.url}/dashboard")
    await expect(tab.page.locator("#running")).to_contain_text("Nothing runs")
    await expect(tab.page.locator("#states")).to_contain_text("No verifier is known")
    await expect(tab.page.locator("#verifier-list")).to_contain_text("No verifier is known")
    await expect(tab.page.locator("#off")).to_contain_text("Every round in this window had drafts")
