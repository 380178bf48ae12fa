"""`outrider serve` with a draft model, end to end: real processes, and models that draft for
themselves.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiny_model import make_tiny_model
from tests.serve_process import Serve

# A busy machine makes drafts late: here they are waited for, whatever that costs.
PATIENT = ("--draft-deadline-ms=60000", "--enforce-eager", "--evidence-db=none")
SAMPLED = {"temperature": 1.0, "seed": 7}


def config(model: str | Path, *others: dict[str, Any]) -> str:
    drafting = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    entries = [*others, drafting]
    every = {"enable_adaptive_verification": False}
    return f"--speculative-config={json.dumps([{**entry, **every} for entry in entries])}"


@pytest.fixture
def temporary() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def drafted_and_accepted(serve: Serve, sampling: dict[str, Any]) -> tuple[int, int]:
    """Ask with the draft model alone and without speculation; the answers are equal."""

    def ask(**speculation: object) -> dict[str, Any]:
        changes = {"max_tokens": 24, "ignore_eos": True, **sampling}
        answer: dict[str, Any] = serve.chat(**changes, speculative_decoding=speculation).json()
        return answer

    answer, plain = ask(proposer="draft_model"), ask(enabled=False)
    assert answer["choices"] == plain["choices"]
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    metrics = answer["metrics"]["speculative_decoding"]
    assert metrics["num_spec_tokens"] == 3
    return metrics["num_draft_tokens"], metrics["num_accepted_draft_tokens"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_model_drafts_for_itself(tmp_path: Path, temporary: Path, free_port: int) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    options = (config(folder, ngram), "--dtype=float32", *PATIENT)
    serve = Serve(folder, free_port, temporary, *options)
    try:
        serve.wait_until_ready()
        assert f"SpeculativeConfig(method='draft_model', model='{folder}'" in serve.text
        assert sorted(serve.children()) == ["draft_model", "gateway", "ngram", "verifier"]
        # The verifier sizes its cache by what a draft model leaves.
        assert serve.text.index("draft_model | ready") < serve.text.index("verifier loading model=")
        for sampling in ({}, SAMPLED):
            drafted, accepted = drafted_and_accepted(serve, sampling)
            assert accepted == drafted > 0
        serve.end(signal.SIGTERM)
        assert serve.process.returncode == 0, serve.text
    finally:
        serve.kill()


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_real_model_drafts_for_itself(smollm2: Path, temporary: Path, free_port: int) -> None:
    serve = Serve(smollm2, free_port, temporary, config(smollm2), *PATIENT)
    try:
        serve.wait_until_ready()
        for sampling in ({}, SAMPLED):
            drafted, accepted = drafted_and_accepted(serve, sampling)
            # Numbers of half precision differ with what shares a step: a tie may fall otherwise.
            assert drafted >= 12 and accepted >= 0.9 * drafted
    finally:
        serve.kill()
