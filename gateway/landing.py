"""The page at `/`: what this is and one request to try.

Knows HTML; loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape
from string import Template
from typing import Final

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Outrider</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
pre { padding: 1rem; overflow-x: auto; border: 1px solid; border-radius: 6px; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; }
</style>
</head>
<body>
<h1>Outrider</h1>
<p>Exact speculative decoding behind an OpenAI-compatible API. Proposers guess the next tokens, a
verifier accepts or rejects them so that the answer is the model's own.</p>
<p>$serving</p>
<p>Base URL for clients: <code>$url/v1</code></p>
<pre><code>$curl</code></pre>
<p><a href="dashboard">Dashboard</a> &middot; <a href="/v1/models">/v1/models</a> &middot;
<a href="/health">/health</a> &middot;
<a href="/metrics">/metrics</a> &middot; <a href="/version">/version</a> ($version)</p>
</body>
</html>
""")


def landing_page(url: str, models: Sequence[str], version: str) -> str:
    """The page for a gateway reached at `url`, whose verifiers serve `models`."""
    names = ", ".join(f"<code>{escape(name)}</code>" for name in dict.fromkeys(models))
    serving = f"Serving {names}." if names else "No verifier serves yet; see /health."
    request = {
        **({"model": models[0]} if models else {}),
        "messages": [{"role": "user", "content": "Write a haiku about speed."}],
        "max_tokens": 64,
    }
    curl = (
        f"curl {shlex.quote(url + '/v1/chat/completions')} \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(request))}"
    )
    return _PAGE.substitute(
        serving=serving, url=escape(url), curl=escape(curl), version=escape(version)
    )
