"""Plots of a result as SVG for the inside of a page.

Knows the JSON document and matplotlib (extra `bench`); knows no page. Lines and text have no
colours of their own: they name the page's CSS variables, so that they follow its light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from outrider.bench.table import load_title, ratio_of
from outrider.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = Mapping[str, Any]

# Stand-ins that matplotlib accepts as colours; each becomes a CSS variable of the page.
_COLOURS: Final[Mapping[str, str]] = {
    "#010203": "--text",
    "#020304": "--grid",
    "#a10101": "--line-1",
    "#a10202": "--line-2",
    "#a10303": "--line-3",
    "#a10404": "--line-4",
    "#a10505": "--line-5",
    "#a10606": "--line-6",
}
_TEXT, _GRID, *_LINES = _COLOURS
# Lines are told apart without colour as well.
_MARKERS: Final = "os^Dvx"


def require_plots() -> None:
    """Raises InputError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "--html: plots need matplotlib, which is not installed; run: pip install "
            "'outrider[bench]'"
        ) from error


def plots(points: Sequence[Point]) -> list[tuple[str, str]]:
    """(title, SVG) of each plot that `points` have enough figures for."""
    result = []
    for number, (title, series, draw) in enumerate(
        (
            ("Speed-up against clients", _speedups(points, "max_concurrency"), _clients_axes),
            ("Speed-up against request rate", _speedups(points, "request_rate"), _rate_axes),
            ("Acceptance by position", _acceptance(points), _acceptance_axes),
            ("Tokens/s against K", _tokens_by_k(points), _k_axes),
        )
    ):
        if series:
            result.append((title, _svg(f"plot{number}", series, draw)))
    return result


# Name of a line -> (x, y, lowest y, highest y) of its points.
Series = Mapping[str, Sequence[tuple[float, float, float, float]]]


def _speedups(points: Sequence[Point], axis: str) -> Series:
    """Of every arm that was measured at two values of `axis` or more."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    name = "e2el" if axis == "request_rate" else "output_throughput"
    for point in points:
        at, ratio = point.get(axis), ratio_of(point, name)
        if isinstance(at, int | float) and ratio:
            found.setdefault(point["arm"], []).append(
                (at, ratio["value"], ratio["low"], ratio["high"])
            )
    return {arm: sorted(line) for arm, line in found.items() if len(line) > 1}


def _acceptance(points: Sequence[Point]) -> Series:
    """Of every arm at the lightest load."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in points:
        rates = point.get("spec_decode_per_position_acceptance_rates")
        if rates and point["arm"] not in found:
            found[point["arm"]] = [(j, 100 * r, 100 * r, 100 * r) for j, r in enumerate(rates)]
    return found


def _tokens_by_k(points: Sequence[Point]) -> Series:
    """One line for each load; at K = 0 stands the mean of its baselines."""
    speeds: dict[str, dict[int, set[float]]] = {}
    for point in points:
        k = point.get("num_speculative_tokens")
        if not isinstance(k, int):
            continue
        line = speeds.setdefault(load_title(point), {})
        line.setdefault(k, set()).add(point["output_throughput"])
        if point.get("baseline") is not None:
            line.setdefault(0, set()).add(point["baseline"]["output_throughput"])
    return {
        load: [(k, (y := fmean(found)), y, y) for k, found in sorted(line.items())]
        for load, line in speeds.items()
        if len(line) > 1
    }


def _clients_axes(axes: Axes, series: Series) -> None:
    _speedup_axes(axes, series)
    axes.set_xlabel("clients")
    axes.set_ylabel("output tokens/s, times the baseline's")


def _rate_axes(axes: Axes, series: Series) -> None:
    _speedup_axes(axes, series)
    axes.set_xlabel("requests/s")
    axes.set_ylabel("times as fast answers as the baseline's")


def _speedup_axes(axes: Axes, series: Series) -> None:
    values = sorted({at for line in series.values() for at, *_ in line})
    if values[0] > 0 and values[-1] / values[0] > 4:
        axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.axhline(1.0, color=_TEXT, linewidth=1, linestyle=":")
    axes.set_ylim(bottom=0)


def _acceptance_axes(axes: Axes, series: Series) -> None:
    axes.set_xticks(range(max(len(line) for line in series.values())))
    axes.set_xlabel("position of the draft token")
    axes.set_ylabel("accepted, % of all steps")
    axes.set_ylim(0, 100)


def _k_axes(axes: Axes, series: Series) -> None:
    axes.set_xticks(sorted({int(k) for line in series.values() for k, *_ in line}))
    axes.set_xlabel("K (0: baseline)")
    axes.set_ylabel("output tokens/s")
    axes.set_ylim(bottom=0)


def _svg(name: str, series: Series, draw: Callable[[Axes, Series], None]) -> str:
    require_plots()
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 11,
        "text.color": _TEXT,
        "axes.labelcolor": _TEXT,
        "axes.edgecolor": _TEXT,
        "xtick.color": _TEXT,
        "ytick.color": _TEXT,
    }
    with rc_context(settings):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for i, (label, line) in enumerate(series.items()):
            x, y, low, high = zip(*line, strict=True)
            colour, marker = _LINES[i % len(_LINES)], _MARKERS[i % len(_MARKERS)]
            axes.plot(x, y, color=colour, marker=marker, markersize=5, label=label)
            if low != high:
                axes.vlines(x, low, high, color=colour, linewidth=1)
        draw(axes, series)
        if len(series) > 1:
            axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(out.getvalue(), name)


def _inline(document: str, name: str) -> str:
    """An SVG document as an element: no prologue, ids that are its own, the page's colours."""
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for stand_in, variable in _COLOURS.items():
        svg = svg.replace(stand_in, f"var({variable})")
    return svg
