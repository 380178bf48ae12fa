"""The playground over the whole stack: tokens by origin, rejected drafts, the comparison."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.dashboard.conftest import PATIENCE_MS, Watched
from tests.interfaces.stack import MODEL, Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)

PROMPT = "the cat sat"
TOKENS = 50
# Answers the prompt with all the tokens it may, all of them text, in a dozen rounds, many of which
# reject something: which drafts are wrong is chance, so that a short answer may have one round.
TEMPERATURE = 0.8
SEED = 66


async def ask(page: Page, **fields: str) -> None:
    """Fill the form, send it, wait for the answer's end."""
    asked = {
        "prompt": PROMPT,
        "seed": str(SEED),
        "max-tokens": str(TOKENS),
        "temperature": str(TEMPERATURE),
    }
    for name, value in {**asked, **fields}.items():
        await page.fill(f"#{name}", value)
    await page.click("#send")
    await expect(page.locator("#play-state")).to_contain_text("tokens in")


async def same_by_api(running: Stack, **speculative: Any) -> Any:
    response = await running.http.post(
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": TEMPERATURE,
            "seed": SEED,
            "max_completion_tokens": TOKENS,
            "speculative_decoding": {"rounds": True, **speculative},
        },
    )
    return response.json()


async def test_tokens_are_coloured_by_who_guessed_them(tab: Watched, running: Stack) -> None:
    page = await tab.open()
    await ask(page)
    # With a seed the answer is the same each time; how much of it is drafted is, too: the toy's
    # drafts are, and no two requests run at once.
    answer = await same_by_api(running)
    rounds = answer["speculative_decoding"]["rounds"]
    content = answer["choices"][0]["message"]["content"]
    tokens = answer["usage"]["completion_tokens"]
    shown = page.locator("#answer .token:not(.rejected)")
    await expect(shown).to_have_count(tokens)
    drafted = page.locator("#answer .token.drafted")
    assert await drafted.count() > 0
    assert await page.locator("#answer .round").count() > 1
    text = "".join(await shown.all_text_contents())
    assert text.startswith(content)
    legend = page.locator("#play-legend")
    await expect(legend).to_contain_text("drafted by toy")
    await expect(legend).to_contain_text("the target’s own")
    # Underlined as well as coloured.
    line = await drafted.first.evaluate("(node) => getComputedStyle(node).textDecorationLine")
    assert line == "underline"
    assert {r["proposer"] for r in rounds if r["drafted"]} == {"toy"}


async def test_rejected_drafts_show_on_focus_and_on_demand(tab: Watched) -> None:
    page = await tab.open()
    await ask(page)
    missed = page.locator("#answer .round.miss")
    assert await missed.count() > 0
    rejected = missed.first.locator(".rejected")
    await expect(rejected.first).to_be_hidden()
    await expect(rejected.first).not_to_have_text("#")
    await missed.first.hover()
    detail = page.locator("#round")
    await expect(detail).to_contain_text("Rejected")
    await expect(detail).to_contain_text("toy drafted")
    await expect(detail).to_contain_text("verify")
    await expect(detail.locator("del")).to_have_count(await rejected.count())
    # Their text is that of the vocabulary, once the gateway has told it.
    await expect(detail.locator("del").first).not_to_contain_text("#", use_inner_text=True)
    await page.check("#show-rejected")
    await expect(rejected.first).to_be_visible()
    await tab.shoot("playground")


async def test_arrow_keys_go_from_round_to_round(tab: Watched) -> None:
    page = await tab.open()
    await ask(page)
    await page.locator("#answer .round").first.focus()
    await expect(page.locator("#round")).to_contain_text("Round 1 ")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#round")).to_contain_text("Round 2 ")
    await page.keyboard.press("End")
    rounds = await page.locator("#answer .round").count()
    await expect(page.locator("#round")).to_contain_text(f"Round {rounds} ")
    await page.keyboard.press("Home")
    await expect(page.locator("#round")).to_contain_text("Round 1 ")
    # The pointer shows another round; the keys go on from the one that has the focus.
    # (By a token of it: what lies in the middle of a round of two lines may be another one.)
    await page.locator("#answer .round").nth(4).locator(".token").first.hover()
    await expect(page.locator("#round")).to_contain_text("Round 5 ")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#round")).to_contain_text("Round 2 ")
    # One stop on the way of the tab key, not one for each round.
    await expect(page.locator("#answer .round[tabindex='0']")).to_have_count(1)


async def test_the_comparison_runs_the_same_without_speculation(tab: Watched) -> None:
    page = await tab.open()
    await ask(page)
    # Which drafts are rejected is chance: proposers need not guess alike twice.
    kept = page.locator("#answer .token:not(.rejected)")
    with_drafts = await kept.all_text_contents()
    await page.click("#compare")
    await expect(page.locator("#play-state")).to_contain_text("times as fast")
    await expect(page.locator("#play-state")).to_contain_text("the same text")
    rows = page.locator("#play-figures tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text("with speculation")
    await expect(rows.nth(1)).to_contain_text("without speculation")
    tokens = [await rows.nth(i).locator("td").first.text_content() for i in (0, 1)]
    assert tokens[0] == tokens[1]
    assert await kept.all_text_contents() == with_drafts


async def test_speculation_can_be_left_out(tab: Watched) -> None:
    page = await tab.open()
    await page.uncheck("#speculate")
    await ask(page)
    await expect(page.locator("#answer .token.drafted")).to_have_count(0)
    assert (
        await page.locator("#answer .round").count() == await page.locator("#answer .token").count()
    )
    await expect(page.locator("#compare")).to_be_disabled()
    await page.locator("#answer .round").first.focus()
    await expect(page.locator("#round")).to_contain_text("No drafts: ")


async def test_fewer_drafts_where_k_says_so(tab: Watched, running: Stack) -> None:
    page = await tab.open()
    await expect(page.locator("#k")).to_have_attribute("placeholder", "4")
    await page.select_option("#proposer", "toy")
    async with page.expect_request("**/v1/chat/completions") as sent:
        await ask(page, k="1")
    body = (await sent.value).post_data_json
    assert body["speculative_decoding"] == {
        "rounds": True,
        "num_speculative_tokens": 1,
        "proposer": "toy",
    }
    for round_ in await page.locator("#answer .round").all():
        assert await round_.locator(".drafted, .rejected").count() <= 1


async def test_a_refusal_is_shown_in_the_gateways_words(tab: Watched) -> None:
    tab.expected.append("status of 400")
    page = await tab.open()
    await page.fill("#k", "99")
    await page.click("#send")
    state = page.locator("#play-state")
    await expect(state).to_contain_text("num_speculative_tokens")
    await expect(state).to_have_class("note error")
    await expect(page.locator("#send")).to_be_enabled()
    await ask(page, k="")
    await expect(state).to_have_class("note")


async def test_control_and_enter_send(tab: Watched) -> None:
    page = await tab.open()
    await page.fill("#prompt", PROMPT)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#play-state")).to_contain_text("tokens in")


async def test_text_of_a_model_is_never_markup(tab: Watched) -> None:
    page = await tab.open()
    chunk = """{"choices":[{"index":0,"delta":{"content":"<img src=x onerror=alert(1)>"},
    "logprobs":{"content":[{"token":"x","logprob":-0.5,"bytes":[60,105,109,103,32,115,114,99,61,120,
    62]}]}}],"speculative_decoding":{"rounds":[{"index":0,"base":0,"offered":0,"drafted":0,
    "accepted":0,"emitted":1,"proposer":null,"off_reason":"<b>why</b>","draft_wait_ms":0,
    "verify_ms":1,"lookahead_hit":false,"draft_token_ids":[]}]}}"""
    body = f"data: {''.join(chunk.split(chr(10)))}\n\ndata: [DONE]\n\n"
    await page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    await page.click("#send")
    await expect(page.locator("#answer")).to_have_text("<img src=x>")
    await expect(page.locator("#answer img")).to_have_count(0)
    await page.locator("#answer .round").focus()
    await expect(page.locator("#round")).to_contain_text("<b>why</b>")


def one_round(content: str, tokens: list[str]) -> str:
    """A stream whose one round emitted `tokens` of the target's own."""
    entries = [{"token": t, "logprob": -0.5, "bytes": list(t.encode())} for t in tokens]
    chunk = {
        "choices": [
            {
                "index": 0,
                "delta": {"content": content},
                "logprobs": {"content": entries},
                "finish_reason": "stop",
            }
        ],
        "speculative_decoding": {
            "rounds": [
                {
                    "base": 0,
                    "drafted": 0,
                    "accepted": 0,
                    "emitted": len(tokens),
                    "draft_wait_ms": 0,
                    "verify_ms": 1,
                    "draft_token_ids": [],
                }
            ]
        },
    }
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"


async def test_the_token_that_ends_an_answer_is_none_of_it(tab: Watched) -> None:
    page = await tab.open()
    body = one_round("hi you", ["hi", " you", "<|end|>"])
    await page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    await page.click("#send")
    await expect(page.locator("#answer .token")).to_have_count(3)
    await expect(page.locator("#answer .token.beyond")).to_have_text(["<|end|>"])


async def test_what_is_answered_is_not_sent_again_meanwhile(tab: Watched) -> None:
    page = await tab.open()
    answered = asyncio.Event()
    asked: list[str] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.url)
        await answered.wait()
        await route.fulfill(body=one_round("hi", ["hi"]), content_type="text/event-stream")

    await page.route("**/v1/chat/completions", answer)
    await page.focus("#prompt")
    for _ in range(3):
        await page.keyboard.press("Control+Enter")
    answered.set()
    await expect(page.locator("#play-state")).to_contain_text("tokens in")
    await expect(page.locator("#send")).to_be_enabled()
    assert len(asked) == 1
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#send")).to_be_enabled()
    await expect(page.locator("#answer .round")).to_have_count(1)
