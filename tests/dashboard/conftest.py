"""One stack and one Chromium for all tests of the page; a tab of its own for each test.

Every tab is watched: a script error, a message on the console or a request to another host fails
the test that caused it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright

from gateway.evidence.settings import EvidenceSettings
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.interfaces.stack import Stack, stack

ARTEFACTS = Path(__file__).parents[2] / "test-artefacts" / "dashboard"
# On a busy machine a browser may take its time; nothing passes or fails by being quick.
PATIENCE_MS = 30_000
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@dataclass
class Watched:
    """A tab and what went wrong in it. `expected` are texts of console messages that may come."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", lambda m: self._note(f"console {m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self._note(f"script error: {e}"))
        self.page.on("request", lambda r: self._check_host(r.url))

    async def open(self) -> Page:
        """The page, with the feed alive."""
        await self.page.goto(f"{self.url}/dashboard")
        await self.page.wait_for_selector("#connection[data-state=live]")
        return self.page

    async def shoot(self, name: str) -> None:
        """Keep a screenshot as a test artefact."""
        await self.page.evaluate("() => scrollTo({ top: 0, behavior: 'instant' })")
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    def _note(self, problem: str) -> None:
        if not any(text in problem for text in self.expected):
            self.problems.append(problem)

    def _check_host(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.problems.append(f"a request left the host: {url}")


NewTab = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def running() -> AsyncIterator[Stack]:
    """The whole stack over the toy target; rounds and their texts are traced."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    otlp = f"unix:{folder}/otlp.sock"
    async with stack(
        folder,
        attached=("toy",),
        gateway_options={"evidence": EvidenceSettings(listen=otlp)},
        trace=TraceSettings(endpoint=otlp, level=TraceLevel.DETAILED, content=True),
    ) as one:
        yield one
    shutil.rmtree(folder)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert found, "these tests drive Debian's Chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield chromium
        await chromium.close()


@pytest_asyncio.fixture(loop_scope="session")
async def new_tab(running: Stack, browser: Browser) -> AsyncIterator[NewTab]:
    """Makes watched tabs; options are those of a browser context."""
    tabs: list[Watched] = []

    async def make(**options: Any) -> Watched:
        context = await browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE_MS)
        tab = Watched(await context.new_page(), url_of(running))
        tab.watch()
        tabs.append(tab)
        return tab

    yield make
    for tab in tabs:
        await tab.page.context.close()
    assert [p for tab in tabs for p in tab.problems] == []


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def desktop(browser: Browser) -> BrowserContext:
    """What tests share that leave nothing behind in it."""
    context = await browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest_asyncio.fixture(loop_scope="session")
async def tab(running: Stack, desktop: BrowserContext) -> AsyncIterator[Watched]:
    one = Watched(await desktop.new_page(), url_of(running))
    one.watch()
    yield one
    await one.page.close()
    assert one.problems == []


def url_of(running: Stack) -> str:
    return str(running.http.base_url).rstrip("/")
