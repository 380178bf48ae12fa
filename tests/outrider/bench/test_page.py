"""The page: whole, self-contained, and readable in light and dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from outrider.bench import plots as plots_module
from outrider.bench.page import page
from outrider.bench.plots import plots, require_plots
from outrider.errors import InputError
from tests.outrider.bench.results import point, sweep

SVG = "{http://www.w3.org/2000/svg}"
GRID = [
    point(f"K={k}", clients=clients, k=k, speed=100.0 + 10 * k - clients)
    for clients in (1, 8, 32)
    for k in (2, 4, 8)
]


class Reader(HTMLParser):
    VOID = ("meta", "br", "hr", "img", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values[k] or "" for k in ("src", "href", "xlink:href") if k in values]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    return reader


def test_a_sweep_has_all_three_plots() -> None:
    reader = read(page(sweep(*GRID)))
    assert reader.tags.count("svg") == reader.tags.count("figure") == 3
    text = " ".join(reader.text)
    for title in ("Speed-up against clients", "Acceptance by position", "Tokens/s against K"):
        assert title in text


def test_nothing_comes_from_elsewhere() -> None:
    html = page(sweep(*GRID))
    reader = read(html)
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert all(link.startswith("#") for link in reader.links)
    assert not re.search(r"url\((?!#)", html)
    assert "@import" not in html
    hosts = set(re.findall(r"https?://([^/\"'<\s]+)", html))
    # Namespaces of SVG, and the measured server's own URL as text.
    assert hosts <= {"www.w3.org", "h:1"}


def test_ids_are_unique_and_references_hit_them() -> None:
    html = page(sweep(*GRID))
    reader = read(html)
    assert len(reader.ids) == len(set(reader.ids))
    wanted = {link[1:] for link in reader.links} | set(re.findall(r"url\(#([^)]+)\)", html))
    assert wanted
    assert wanted <= set(reader.ids)


def test_colours_follow_light_and_dark() -> None:
    html = page(sweep(*GRID))
    assert "prefers-color-scheme: dark" in html
    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    light, dark = html.split("@media (prefers-color-scheme: dark)", 1)
    for variable in used:
        assert f"{variable}:" in light
        assert f"{variable}:" in dark
    svg = html[html.index("<svg") : html.rindex("</svg>")]
    # Shapes whose colour nobody chose are drawn in black, and cannot be seen in the dark.
    drawn = re.findall(r"(?:stroke|fill): ?(#[0-9a-f]{6})", svg)
    assert not drawn


def test_text_is_escaped() -> None:
    html = page(sweep(point()))
    assert "<m>" not in html
    assert "&lt;m&gt;" in html
    assert "A note &lt;of&gt; the point." in html
    assert "&lt;none&gt;" in html


def test_the_page_says_what_was_measured_and_how() -> None:
    text = " ".join(read(page(sweep(point()))).text)
    for said in (
        "1 client, speculation: tokens come 1.50 times as fast as without (1.40 to 2.00; 95 % "
        "bootstrap over 40 prompts). 39 of 40 answers have the same text.",
        "outrider bench sweep --label 'a b'",
        "http://h:1 (vllm 0.29.0)",
        "2026-01-02T03:04:05Z",
        "42.5",
    ):
        assert said in text


def test_a_single_result_is_its_own_point() -> None:
    document = {**sweep(), **point()}
    del document["points"]
    reader = read(page(document))
    assert reader.tags.count("svg") == 1


def test_without_a_baseline_the_page_says_so() -> None:
    text = " ".join(read(page(sweep(point(baseline=None, rates=[])))).text)
    assert "no baseline, so no speed-up" in text
    assert "None." in text


def titles(*points: dict[str, object]) -> list[str]:
    return [title for title, _ in plots(points)]


def test_a_plot_needs_two_values_to_go_over() -> None:
    assert titles(point(clients=1), point(clients=8)) == [
        "Speed-up against clients",
        "Acceptance by position",
    ]
    assert titles(point(clients=1, baseline=None, rates=[])) == []
    rates = [point(clients=None, rate=rate, rates=[]) for rate in (0.5, 2.0)]
    assert titles(*rates) == ["Speed-up against request rate"]
    # The baseline stands at K = 0.
    assert titles(point("K=4", k=4, rates=[])) == ["Tokens/s against K"]
    assert titles(point("K=4", k=4, rates=[], baseline=None)) == []


def test_plots_are_the_same_each_time() -> None:
    assert plots(GRID) == plots(GRID)


def test_a_plot_shows_every_line_and_its_numbers() -> None:
    svgs = dict(plots(GRID))
    tree = ET.fromstring(svgs["Tokens/s against K"])
    words = {element.text for element in tree.iter(f"{SVG}text")}
    assert {"1 client", "8 clients", "32 clients", "0", "2", "4"} <= words
    assert "output tokens/s" in words
    tree = ET.fromstring(svgs["Speed-up against clients"])
    words = {element.text for element in tree.iter(f"{SVG}text")}
    assert {"K=2", "K=4", "1", "8", "32", "clients"} <= words


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'outrider\[bench\]'"):
        require_plots()
    assert plots_module.require_plots is require_plots


def test_servers_started_for_each_k_have_baselines_of_their_own() -> None:
    points = [point("K=2", k=2, baseline=90.0), point("K=4", k=4, baseline=110.0)]
    reader = read(page(sweep(*points)))
    assert {"90.0", "110.0"} <= set(reader.text)
    assert reader.text.count("baseline") == 2
    shared = read(page(sweep(point("K=2", k=2), point("K=4", k=4))))
    assert shared.text.count("baseline") == 1
