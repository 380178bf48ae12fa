"""The table of recent requests: real records, their rounds as a strip, older ones, and refusals."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Page, Route, expect

from tests.dashboard.conftest import PATIENCE_MS, NewTab, Watched
from tests.dashboard.requesting import complete, recorded
from tests.interfaces.stack import MODEL, Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)


def row(page: Page, request_id: str) -> Any:
    return page.locator("#requests-table tr").filter(has_text=request_id).first


async def test_a_request_and_its_rounds(tab: Watched, running: Stack) -> None:
    answer = await complete(running, "strip-1")
    await recorded(running, "strip-1")
    figures = answer.metrics["speculative_decoding"]
    page = await tab.open()
    line = row(page, "strip-1")
    await expect(line).to_contain_text(MODEL)
    await expect(line).to_contain_text(str(answer.usage.completion_tokens))
    await expect(line).to_contain_text(f"{figures['mean_acceptance_length']:.2f}")
    button = line.get_by_role("button")
    await expect(button).to_have_attribute("aria-expanded", "false")
    await button.click()
    await expect(button).to_have_attribute("aria-expanded", "true")
    strip = page.locator(".strip")
    accepted = strip.locator(".block.accepted")
    await expect(accepted).to_have_count(figures["num_accepted_draft_tokens"])
    missed = figures["num_draft_tokens"] - figures["num_accepted_draft_tokens"]
    await expect(strip.locator(".block.rejected, .block.cut")).to_have_count(missed)
    legend = page.get_by_role("list", name="What the blocks mean")
    await expect(legend).to_contain_text("accepted drafts by toy")
    await expect(legend).to_contain_text("the target’s own")
    emitted = await strip.locator(".block.accepted, .block.emitted").all_text_contents()
    assert len(emitted) == answer.usage.completion_tokens
    # Everybody is told, whatever they see.
    await expect(strip.locator("li").nth(1)).to_contain_text("drafted")
    await expect(page.locator(".detail")).to_contain_text(
        f"of {figures['num_draft_tokens']} drafts"
    )
    await tab.shoot("requests")
    await page.locator("[aria-expanded=true][data-request]").click()
    await expect(strip).to_have_count(0)


async def test_a_long_round_is_seen_whole_on_a_phone(new_tab: NewTab) -> None:
    long = {
        **record(2),
        "rounds": [
            {
                "base": 0,
                "verified": 30,
                "accepted": 0,
                "emitted": 1,
                "draft_texts": [" unaccepted"] * 30,
                "emitted_texts": ["x" * 200],
            }
        ],
    }

    async def answer(route: Route) -> None:
        one = "?" not in route.request.url
        await route.fulfill(json=long if one else {"data": [record(2)], "has_more": False})

    tab = await new_tab(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    await tab.page.route("**/v1/requests**", answer)
    page = await tab.open()
    await page.locator("[data-request]").click()
    blocks = page.locator(".strip .block")
    await expect(blocks).to_have_count(31)
    ends = await blocks.evaluate_all("all => all.map((b) => b.getBoundingClientRect().right)")
    assert max(ends) <= 390


def record(number: int) -> dict[str, Any]:
    return {
        "request_id": f"old-{number:03d}",
        "span_id": f"{number:016x}",
        "started": 1000.0 - number,
        "model": "m",
        "temperature": 0.0,
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "num_rounds": 2,
        "num_spec_steps": 0,
        "num_draft_tokens": 0,
        "first_token_ms": 5.0,
        "duration_ms": 9.0,
        "finish_reason": "stop",
        "error": "deadline" if number == 1 else None,
    }


async def test_older_ones_come_on_demand(tab: Watched) -> None:
    async def answer(route: Route) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        last = asked.get("before", [""])[0]
        first = int(last, 16) + 1 if last else 0
        numbers = range(first, min(first + int(asked["limit"][0]), 30))
        await route.fulfill(
            json={"object": "list", "data": [record(n) for n in numbers], "has_more": first == 0}
        )

    await tab.page.route("**/v1/requests?*", answer)
    page = await tab.open()
    rows = page.locator("#requests-table tbody tr")
    await expect(rows).to_have_count(25)
    await expect(rows.nth(1)).to_contain_text("deadline")
    await page.click("#requests-older")
    await expect(rows).to_have_count(30)
    await expect(page.locator("#requests-older")).to_be_hidden()


async def test_without_rounds_it_says_how_to_get_them(tab: Watched) -> None:
    async def answer(route: Route) -> None:
        one = "?" not in route.request.url
        await route.fulfill(json=record(2) if one else {"data": [record(2)], "has_more": False})

    await tab.page.route("**/v1/requests**", answer)
    page = await tab.open()
    await page.locator("[data-request]").click()
    await expect(page.locator(".detail")).to_contain_text("--trace-level detailed")


@pytest.mark.parametrize(
    ("status", "words"), [(404, "keeps no record"), (500, "cannot be shown: it broke")]
)
async def test_what_cannot_be_shown_is_said(tab: Watched, status: int, words: str) -> None:
    tab.expected.append(f"status of {status}")
    await tab.page.route(
        "**/v1/requests?*",
        lambda route: route.fulfill(status=status, json={"error": {"message": "it broke"}}),
    )
    page = await tab.open()
    await expect(page.locator("#requests-state")).to_contain_text(words)


async def test_an_empty_table_says_so(tab: Watched) -> None:
    await tab.page.route(
        "**/v1/requests?*", lambda route: route.fulfill(json={"data": [], "has_more": False})
    )
    page = await tab.open()
    await expect(page.locator("#requests-table")).to_contain_text("No request has ended yet")
