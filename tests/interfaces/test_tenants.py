"""The whole stack with a real suffix proposer: what one key leaves behind, no other meets.

Drafts and cached prefixes of a tenant must be the same whether or not another was there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.keys import given_keys
from proposer_service.server import start as start_proposer
from proposer_service.settings import ProposerSettings
from tests.interfaces.stack import MODEL, K, Stack, stack
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.text import Text

KEYS = given_keys(["alpha-key", "beta-key"], "--api-key")
PROMPT = "a dog and a cat sat on the mat and looked"


@asynccontextmanager
async def running(folder: Path, **gateway_options: Any) -> AsyncIterator[Stack]:
    proposer = await start_proposer(
        ProposerSettings(listen=f"unix:{folder}/p.sock", method="suffix", lookahead=False)
    )
    text = Text(byte_level_tokenizer())
    hello = HelloParameters(
        verifier_instance_id="v",
        vocabulary_fingerprint=text.fingerprint,
        vocabulary_size=len(byte_level_tokenizer()),
        eos_token_ids=(1,),
        max_sequences=16,
        num_speculative_tokens=K,
        context_limit=256,
    )
    # Every draft is waited for, so that rounds do not depend on time.
    pool = ProposerPool([proposer.address], hello, 20.0)
    try:
        async with stack(
            folder, pool=pool, gateway_options={"api_keys": KEYS, **gateway_options}
        ) as one:
            while pool.states()[0].state.value != "connected":
                await asyncio.sleep(0.01)
            yield one
    finally:
        pool.close()
        await proposer.stop()


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
