"""The clients in README.md and the docs run as they are written."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.interfaces.stack import MODEL, Stack

ROOT = Path(__file__).parents[2]


def stub_client(page: str) -> str:
    """The Python block of `page` that uses the generated stubs."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "verifier_pb2_grpc" in block]
    return str(block)


def run(code: str, address: str) -> str:
    """What `code` prints, its channel's address being replaced."""
    code, count = re.subn(r'insecure_channel\("[^"]*"\)', f'insecure_channel("{address}")', code)
    assert count == 1
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "readme", "exec"), {})
    return shown.getvalue()


async def test_the_readmes_stub_client(running: Stack) -> None:
    code = stub_client("README.md")
    assert len(code.strip().splitlines()) <= 16
    shown = await asyncio.to_thread(run, code, running.address)
    answer = await running.client.completions.create(
        model=MODEL,
        prompt="The three longest rivers are",
        temperature=0.7,
        seed=1,
        max_tokens=64,
    )
    told = answer.model_extra["metrics"]["speculative_decoding"]
    accepted, drafted = told["num_accepted_draft_tokens"], told["num_draft_tokens"]
    assert shown == f"{answer.choices[0].text}\n{accepted} of {drafted} drafts accepted\n"


@pytest.mark.parametrize("page", ["docs/verifier.md"])
async def test_the_docs_stub_client(running: Stack, page: str) -> None:
    shown = await asyncio.to_thread(run, stub_client(page), running.address)
    assert shown
