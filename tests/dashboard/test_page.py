"""The page for everybody: light and dark, wide and narrow, by keyboard, by ear, behind a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from gateway.keys import ApiKey, digest_of
from gateway.server import start as start_gateway
from gateway.settings import GatewaySettings
from tests.dashboard.conftest import PATIENCE_MS, NewTab, Watched
from tests.dashboard.requesting import complete, recorded, several
from tests.interfaces.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
PHONE = {"width": 390, "height": 844}
GROUND = "() => getComputedStyle(document.body).backgroundColor"
WIDTHS = "() => [document.documentElement.scrollWidth, innerWidth]"


async def filled(tab: Watched, running: Stack) -> Page:
    """The page with everything on it: charts, an answer with rejected drafts, a strip."""
    await complete(running, "one-that-is-shown")
    await recorded(running, "one-that-is-shown")
    page = await tab.open()
    await page.fill("#prompt", "the cat sat")
    await page.fill("#max-tokens", "40")
    await page.click("#send")
    await expect(page.locator("#play-state")).to_contain_text("tokens in")
    await page.check("#show-rejected")
    await page.locator("#answer .round").first.hover()
    await page.locator("[data-request]").first.click()
    await expect(page.locator(".strip")).to_be_visible()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_can_be_read(new_tab: NewTab, running: Stack, scheme: str) -> None:
    tab = await new_tab(color_scheme=scheme)
    page = await filled(tab, running)
    assert await page.evaluate(CONTRAST) == []
    await tab.shoot(f"page-{scheme}")


async def test_the_theme_follows_the_system_until_it_is_chosen(new_tab: NewTab) -> None:
    tab = await new_tab(color_scheme="dark")
    page = await tab.open()
    dark = await page.evaluate(GROUND)
    button = page.locator("#theme-toggle")
    await expect(button).to_have_text("Theme: system")
    await button.click()
    await expect(button).to_have_text("Theme: light")
    light = await page.evaluate(GROUND)
    assert light != dark
    await page.reload()
    await expect(button).to_have_text("Theme: light")
    assert await page.evaluate(GROUND) == light
    await button.click()
    assert await page.evaluate(GROUND) == dark


async def test_a_phone_scrolls_down_only(new_tab: NewTab, running: Stack) -> None:
    tab = await new_tab(viewport=PHONE, is_mobile=True, has_touch=True)
    page = await filled(tab, running)
    content, window = await page.evaluate(WIDTHS)
    assert content <= window == PHONE["width"]
    buttons = await page.locator("main button:visible:not(.plain)").all()
    heights = [box["height"] for b in buttons if (box := await b.bounding_box())]
    assert min(heights) >= 40
    await tab.shoot("page-phone")


async def test_landmarks_headings_and_names(tab: Watched, running: Stack) -> None:
    await several(running, 1)
    page = await tab.open()
    await expect(page.get_by_role("main")).to_have_count(1)
    await expect(page.get_by_role("banner")).to_have_count(1)
    await expect(page.get_by_role("navigation", name="Sections")).to_have_count(1)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Outrider")
    for name in ("Live", "Playground", "Requests", "Verifiers"):
        await expect(page.get_by_role("region", name=name, exact=True).first).to_be_visible()
        await expect(page.get_by_role("heading", level=2, name=name)).to_be_visible()
    unnamed = await page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea")]
        .filter((field) => !field.labels?.length).map((field) => field.id)"""
    )
    assert unnamed == []
    ids = await page.evaluate("() => [...document.querySelectorAll('[id]')].map((n) => n.id)")
    assert len(ids) == len(set(ids))
    assert await page.evaluate("() => document.documentElement.lang") == "en"
    await expect(page.locator("figure.chart svg[role=img][aria-label]")).to_have_count(8)


async def test_the_keyboard_reaches_everything(tab: Watched, running: Stack) -> None:
    page = await tab.open()
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#live")).to_be_focused()
    reached = set()
    for _ in range(40):
        await page.keyboard.press("Tab")
        reached.add(await page.evaluate("() => document.activeElement.id"))
    wanted = {"verifier-choice", "window-choice", "numbers-toggle", "running", "prompt", "model"}
    wanted |= {"proposer", "k", "temperature", "seed", "max-tokens", "speculate", "send"}
    assert wanted | {"show-rejected", "requests-refresh", "requests-table"} <= reached
    outline = """() => { const node = document.getElementById("send"); node.focus();
        return getComputedStyle(node).outlineStyle; }"""
    await page.keyboard.press("Shift+Tab")
    assert await page.evaluate(outline) == "solid"


async def test_changes_of_speculation_are_said_and_figures_are_not(tab: Watched) -> None:
    page = await tab.open()
    live = await page.evaluate(
        """() => [...document.querySelectorAll("[role=status], [aria-live]")].map((n) => n.id)"""
    )
    assert set(live) == {"connection", "announcer", "play-state", "round", "requests-state"}
    await expect(page.locator("#announcer")).to_be_empty()


async def test_nothing_moves_for_those_who_asked(new_tab: NewTab) -> None:
    tab = await new_tab(reduced_motion="reduce")
    page = await tab.open()
    smooth = "() => getComputedStyle(document.documentElement).scrollBehavior"
    assert await page.evaluate(smooth) == "auto"
    moving = "() => document.getAnimations().length"
    assert await page.evaluate(moving) == 0


async def test_a_key_opens_a_protected_gateway(new_tab: NewTab, running: Stack) -> None:
    gateway = await start_gateway(
        GatewaySettings(
            port=0,
            verifiers=(running.address,),
            poll_interval_s=0.05,
            drain_timeout_s=0.0,
            api_keys=(ApiKey("page", digest_of("right-key")),),
        )
    )
    try:
        tab = await new_tab()
        tab.url = gateway.url
        tab.expected.append("status of 401")
        page = tab.page
        await page.goto(f"{gateway.url}/dashboard")
        state = page.locator("#connection")
        await expect(state).to_have_attribute("data-state", "refused")
        await expect(page.locator("#key-note")).to_have_text("This gateway wants an API key.")
        await page.fill("#key", "wrong-key")
        await page.get_by_role("button", name="Use").click()
        await expect(page.locator("#key-note")).to_have_text("The gateway does not take this key.")
        await page.fill("#key", "right-key")
        await page.keyboard.press("Enter")
        await expect(state).to_have_text("live")
        await expect(page.locator("#key-form")).to_be_hidden()
        await page.fill("#prompt", "the cat")
        await page.click("#send")
        await expect(page.locator("#play-state")).to_contain_text("tokens in")
        # Kept for this tab, and nowhere that outlives it.
        assert "right-key" not in await page.content()
        stored = "() => [JSON.stringify({...sessionStorage}), JSON.stringify({...localStorage})]"
        session, local = await page.evaluate(stored)
        assert "right-key" in session
        assert "right-key" not in local
        assert await page.context.cookies() == []
    finally:
        await gateway.stop()
