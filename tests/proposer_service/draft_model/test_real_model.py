"""SmolLM2 drafts for itself, over gRPC: every token is the one that it would have said anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.server import start
from proposer_service.settings import ProposerSettings
from tests.regressions.bench import Bench
from tests.verifier_service.serving import until
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import DraftSource, NoDrafts, RejectionRule, Sampling
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState
from verifier_service.scheduler import Scheduler
from verifier_service.settings import VerifierSettings

K, TOKENS, PATIENCE_S = 3, 12, 120.0
PROMPTS = ("The capital of France is", "def add(a, b):\n    return")
CACHE_BYTES = 128 << 20


@pytest.fixture(scope="module")
def target(smollm2: Path) -> Iterator[TorchEngine]:
    settings = VerifierSettings(
        str(smollm2), "", "t", device="cpu", max_model_len=512, kv_cache_bytes=CACHE_BYTES
    )
    engine = TorchEngine(settings)
    yield engine
    engine.close()


def generate(
    target: TorchEngine, prompts: Sequence[list[int]], sampling: Sampling, source: DraftSource
) -> Bench:
    bench = Bench(source, k=0 if isinstance(source, NoDrafts) else K)
    bench.engine = target  # type: ignore[assignment]
    bench.scheduler = Scheduler(
        target.cache,
        bench.controller,
        num_speculative_tokens=bench.k,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_waiting=8,
    )
    for number, prompt in enumerate(prompts):
        bench.add(f"r{number}", prompt, sampling)
    bench.finish()
    return bench


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_smollm2_accepts_what_it_drafts(
    smollm2: Path, target: TorchEngine, socket_dir: Path
) -> None:
    served = await start(
        ProposerSettings(
            f"unix:{socket_dir}/d.sock",
            "draft_model",
            draft_model=DraftModelSettings(
                str(smollm2), "cpu", max_model_len=512, kv_cache_memory_bytes=CACHE_BYTES
            ),
            max_sequences=4,
        )
    )
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    from outrider.vocabulary import fingerprint

    hello = HelloParameters(
        verifier_instance_id="v",
        vocabulary_fingerprint=fingerprint(tokenizer.get_vocab()),
        vocabulary_size=target.model.vocab_size,
        eos_token_ids=target.model.eos_token_ids,
        max_sequences=4,
        num_speculative_tokens=K,
        context_limit=512,
        on_cpu=True,
        rejection_rule=RejectionRule.COUPLED,
    )
    pool = ProposerPool([served.address], hello, PATIENCE_S)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    try:
        await until(lambda: pool.states()[0].state is LinkState.CONNECTED)
        for temperature in (0.0, 1.0):
            sampling = Sampling(temperature=temperature, seed=11, max_tokens=TOKENS)
            plain = generate(target, prompts, sampling, NoDrafts())
            # The server answers on this thread's loop.
            drafted = await asyncio.to_thread(generate, target, prompts, sampling, pool)
            for number in range(len(prompts)):
                name = f"r{number}"
                assert drafted.tokens(name) == plain.tokens(name)
                # Of the last round more may be verified than there is room for.
                rounds = drafted.rounds(name)[:-1]
                assert sum(r.drafted for r in rounds) >= 6
                assert all(r.accepted == r.drafted for r in rounds)
    finally:
        pool.close()
        await served.stop()
