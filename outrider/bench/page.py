"""The result as one HTML page that needs nothing else: no script, no font, no other host.

Knows the JSON document; everything on the page comes from it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from outrider.bench.document import points_of
from outrider.bench.plots import plots
from outrider.bench.table import (
    TIME_TITLES,
    all_notes,
    load_title,
    number,
    ratio_of,
    verdict,
)

_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #57606a; --grid: #d0d7de;
  --line-1: #0550ae; --line-2: #b35900; --line-3: #116329; --line-4: #8250df; --line-5: #a40e26;
  --line-6: #57606a; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --soft: #9da7b1;
  --grid: #30363d; --line-1: #79c0ff; --line-2: #ffa657; --line-3: #7ee787; --line-4: #d2a8ff;
  --line-5: #ff7b72; --line-6: #9da7b1; } }
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto;
  max-width: 44rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--grid); text-align: right;
  white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
dt { color: var(--soft); } dd { margin: 0 0 0.4rem 0; } code { overflow-wrap: anywhere; }
"""
_FIGURES: Final = (
    ("completed", "successful", 0),
    ("failed", "failed", 0),
    ("output_throughput", "output tokens/s", 1),
    ("mean_ttft_ms", "mean TTFT (ms)", 1),
    ("mean_tpot_ms", "mean TPOT (ms)", 2),
    ("mean_itl_ms", "mean ITL (ms)", 2),
    ("mean_e2el_ms", "mean E2EL (ms)", 1),
    ("spec_decode_acceptance_length", "acceptance length", 2),
    ("spec_decode_acceptance_rate", "acceptance rate (%)", 1),
)


def page(document: Mapping[str, Any]) -> str:
    """The HTML page of a result. Raises InputError where matplotlib is not installed."""
    points = points_of(document)
    title = f"outrider bench {document['kind']}: {document['servers'][0]['model']}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(verdict(point))}</p>" for point in points),
        *(
            f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
            for caption, svg in plots(points)
        ),
        "<h2>Figures</h2>",
        _table(_figure_rows(points)),
        "<h2>Speed-up and its spread</h2>",
        _table(_speedup_rows(points)),
        "<h2>Acceptance by position (%)</h2>",
        _table(_acceptance_rows(points)),
        "<h2>Notes</h2>",
        _list(all_notes(document["notes"], points)),
        "<h2>How it was measured</h2>",
        _settings(document),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def _figure_rows(points: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    yield ("load", "arm", *(title for _, title, _ in _FIGURES))
    told: set[tuple[str, float]] = set()
    for point in points:
        load = load_title(point)
        baseline = point.get("baseline")
        # Arms of one session share a baseline; those of servers started for each K do not.
        if baseline is not None and (load, baseline["output_throughput"]) not in told:
            told.add((load, baseline["output_throughput"]))
            yield (load, "baseline", *_figures(baseline))
        yield (load, point["arm"], *_figures(point))


def _figures(values: Mapping[str, Any]) -> Iterable[str]:
    return (number(values.get(key), digits) for key, _, digits in _FIGURES)


def _speedup_rows(points: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    yield ("load", "arm", "of", "speed-up", "from", "to", "spread")
    titles = {"output_throughput": "Output tokens/s", **TIME_TITLES}
    for point in points:
        for name, title in titles.items():
            ratio = ratio_of(point, name)
            if ratio:
                figures = (number(ratio[key], 2) for key in ("value", "low", "high"))
                yield (load_title(point), point["arm"], title, *figures, ratio["spread"])


def _acceptance_rows(points: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    key = "spec_decode_per_position_acceptance_rates"
    width = max((len(point.get(key) or ()) for point in points), default=0)
    yield ("load", "arm", *(str(position) for position in range(width)))
    for point in points:
        rates = [number(100 * rate, 1) for rate in point.get(key) or ()]
        yield (load_title(point), point["arm"], *rates, *["–"] * (width - len(rates)))


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *body = rows
    if not body:
        return "<p>None.</p>"
    lines = ["".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
    inner = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{inner}\n</table></div>'


def _list(lines: Sequence[str]) -> str:
    if not lines:
        return "<p>None.</p>"
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _settings(document: Mapping[str, Any]) -> str:
    servers = "; ".join(
        f"{s['url']} ({s['kind']}{' ' + s['version'] if s['version'] else ''})"
        for s in document["servers"]
    )
    entries = {
        "label": document["label"],
        "command": shlex.join(document["command"]),
        "date": document["date"],
        "servers": servers,
        "outrider": document["outrider"],
        **{f"client {key}": value for key, value in document["client"].items()},
        **document["settings"],
        **document["metadata"],
    }
    rows = "".join(
        f"<dt>{escape(str(key))}</dt><dd><code>{escape(str(value))}</code></dd>"
        for key, value in entries.items()
    )
    return f"<dl>{rows}</dl>"
