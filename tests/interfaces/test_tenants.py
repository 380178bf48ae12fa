"""The whole stack with a real suffix proposer: what one key leaves behind, no other meets.

Drafts and cached prefixes of a tenant must be the same whether or not another was there before.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from gateway.keys import given_keys
from tests.interfaces.drafted_stack import drafted_stack
from tests.interfaces.stack import MODEL, Stack

KEYS = given_keys(["alpha-key", "beta-key"], "--api-key")
PROMPT = "a dog and a cat sat on the mat and looked"


def running(folder: Path, **gateway_options: Any) -> AbstractAsyncContextManager[Stack]:
    return drafted_stack(
        folder,
        "suffix",
        {"lookahead": False},
        gateway_options={"api_keys": KEYS, **gateway_options},
    )


async def ask(one: Stack, key: str, salt: str | None = None) -> tuple[str, int, list[list[int]]]:
    """The answer, how many prompt tokens were cached, and each round's draft tokens."""
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "speculative_decoding": {"rounds": True},
    }
    if salt is not None:
        body["cache_salt"] = salt
    headers = {"Authorization": f"Bearer {key}"}
    response = await one.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer = response.json()
    return (
        answer["choices"][0]["text"],
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        [told["draft_token_ids"] for told in answer["speculative_decoding"]["rounds"]],
    )


async def test_another_keys_requests_leave_no_trace(socket_dir: Path) -> None:
    async with running(socket_dir) as one:
        alone = await ask(one, "beta-key")
    async with running(socket_dir) as one:
        first = await ask(one, "alpha-key")
        again = await ask(one, "alpha-key")
        other = await ask(one, "beta-key")
        forged = await ask(one, "beta-key", "alpha-key")
    assert first == alone
    # It would have been seen: the same key's own earlier answer is drafted, its prompt cached.
    assert again[0] == first[0]
    assert again[1] > 0 and again[2] != first[2]
    assert sum(map(len, again[2])) > sum(map(len, first[2]))
    assert other == alone
    assert forged == alone


async def test_one_keys_salts_part_its_own_users(socket_dir: Path) -> None:
    async with running(socket_dir) as one:
        first = await ask(one, "alpha-key", "user 1")
        other = await ask(one, "alpha-key", "user 2")
        again = await ask(one, "alpha-key", "user 1")
    assert other == first
    assert again[1] > 0 and again[2] != first[2]


async def test_an_operator_may_let_them_share(socket_dir: Path) -> None:
    async with running(socket_dir, share_cache_across_keys=True) as one:
        first = await ask(one, "alpha-key")
        other = await ask(one, "beta-key")
    assert other[0] == first[0]
    assert other[1] > 0 and other[2] != first[2]
