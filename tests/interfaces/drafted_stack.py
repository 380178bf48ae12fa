"""The whole stack with a real proposer behind gRPC, instead of guesses in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from proposer_service.server import start as start_proposer
from proposer_service.settings import ProposerSettings
from tests.interfaces.stack import MAX_MODEL_LEN, K, Stack, stack
from tests.verifier_service.serving import until
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState
from verifier_service.text import Text

# Every draft is waited for, so that rounds do not depend on time.
_PATIENCE_S = 20.0


@asynccontextmanager
async def drafted_stack(
    folder: Path, method: Literal["ngram", "suffix"], proposer: dict[str, Any], **options: Any
) -> AsyncIterator[Stack]:
    """A `stack` of these `options`, its proposer connected; `proposer` are settings of that."""
    served = await start_proposer(ProposerSettings(f"unix:{folder}/p.sock", method, **proposer))
    tokenizer = byte_level_tokenizer()
    hello = HelloParameters(
        verifier_instance_id="v",
        vocabulary_fingerprint=Text(tokenizer).fingerprint,
        vocabulary_size=len(tokenizer),
        eos_token_ids=(1,),
        max_sequences=16,
        num_speculative_tokens=K,
        context_limit=MAX_MODEL_LEN,
    )
    pool = ProposerPool([served.address], hello, _PATIENCE_S)
    try:
        async with stack(folder, pool=pool, **options) as running:
            await until(lambda: pool.states()[0].state is LinkState.CONNECTED)
            yield running
    finally:
        pool.close()
        await served.stop()
