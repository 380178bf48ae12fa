"""Two ways to decode for the exactness check: the verifier's core in process, and a whole stack.

In process the proposers are called directly and every draft is verified, so that a run is fast
and repeatable. The served stack speaks HTTP and gRPC, with its controller on, as users run it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from benchmarks.adversary import Adversary
from benchmarks.exact_cases import PROPOSER_SETS, Case, Generated, Job
from benchmarks.inprocess_source import InprocessSource
from benchmarks.outrider_system import REQUEST_SECONDS, ServerFailed
from outrider.acceptance import Acceptance
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from verifier_service.build import build_core
from verifier_service.core import EngineCore
from verifier_service.messages import Output, Request, Sampling
from verifier_service.settings import VerifierSettings


class GenerationFailed(Exception):
    """A request ended with an error instead of an output."""


class InprocessGenerator:
    """A context that owns a core; float32, coupled, every offered draft verified."""

    def __init__(self, model: Path, max_k: int, max_clients: int, *, compile: bool) -> None:
        self._settings = VerifierSettings(
            model=str(model),
            listen="",
            served_model_name=model.name,
            num_speculative_tokens=max_k,
            device="cpu",
            dtype="float32",
            max_num_seqs=max_clients,
            adaptive=False,
            compile=compile,
        )
        self._number = 0

    def __enter__(self) -> InprocessGenerator:
        facts = model_facts(Path(self._settings.model))
        self._source = InprocessSource(
            {
                "ngram": NgramProposer(2, 5),
                "suffix": SuffixProposer(),
                "adversary": Adversary(*facts),
            }
        )
        self._core: EngineCore = build_core(self._settings, self._source)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._core.shutdown()

    def generate(self, jobs: Sequence[Job], case: Case, max_tokens: int) -> list[Generated]:
        """Outputs end at end-of-sequence. Raises GenerationFailed."""
        self._source.use(PROPOSER_SETS[case.proposers])
        with ThreadPoolExecutor(case.clients) as clients:
            return list(clients.map(lambda job: self._one(job, case, max_tokens), jobs))

    def _one(self, job: Job, case: Case, max_tokens: int) -> Generated:
        sink = _Sink(case.k)
        sampling = Sampling(
            temperature=case.temperature,
            seed=job.seed,
            max_tokens=max_tokens,
            stop_token_ids=frozenset(self._core.model.eos_token_ids),
        )
        request = Request(f"{case} {job.name}", list(job.prompt), sampling, case.k)
        self._core.submit(request, sink)
        return sink.wait()


class ServedGenerator:
    """Asks a running `outrider serve` at `url`; cases of the adversary are not for it."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=REQUEST_SECONDS)

    def generate(self, jobs: Sequence[Job], case: Case, max_tokens: int) -> list[Generated]:
        """Outputs end at end-of-sequence. Raises ServerFailed."""
        with ThreadPoolExecutor(case.clients) as clients:
            return list(clients.map(lambda job: self._one(job, case, max_tokens), jobs))

    def _one(self, job: Job, case: Case, max_tokens: int) -> Generated:
        names = PROPOSER_SETS[case.proposers]
        speculation: dict[str, Any] = {"enabled": case.k > 0, "num_speculative_tokens": case.k}
        if len(names) == 1:
            speculation["proposer"] = names[0]
        response = self._client.post(
            "/v1/completions",
            json={
                "prompt": list(job.prompt),
                "max_tokens": max_tokens,
                "temperature": case.temperature,
                "top_p": 1.0,
                "top_k": 0,
                "seed": job.seed,
                "return_token_ids": True,
                "speculative_decoding": speculation,
            },
        )
        if response.status_code != 200:
            raise ServerFailed(f"HTTP {response.status_code}: {response.text[:500]}")
        answer = response.json()
        sums = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        return Generated(
            ids=tuple(answer["choices"][0]["token_ids"]),
            steps=sums.get("num_spec_steps", 0),
            drafted=sums.get("num_draft_tokens", 0),
            accepted=sums.get("num_accepted_draft_tokens", 0),
        )


class _Sink:
    """Collects one request's outputs on the engine's thread; `wait` blocks another one."""

    def __init__(self, k: int) -> None:
        self._ids: list[int] = []
        self._acceptance = Acceptance(k)
        self._error = ""
        self._done = threading.Event()

    def __call__(self, output: Output) -> None:
        self._ids += output.token_ids
        if output.round is not None:
            self._acceptance.add(output.round)
        self._error = output.error
        if output.error or output.finish_reason is not None:
            self._done.set()

    def wait(self) -> Generated:
        if not self._done.wait(REQUEST_SECONDS):
            raise GenerationFailed(f"no output within {REQUEST_SECONDS:.0f} s")
        if self._error:
            raise GenerationFailed(self._error)
        sums = self._acceptance
        return Generated(
            tuple(self._ids),
            sums.num_spec_steps,
            sums.num_draft_tokens,
            sums.num_accepted_draft_tokens,
        )


def model_facts(model: Path) -> tuple[int, tuple[int, ...]]:
    """Vocabulary size and end-of-sequence ids, from the model's own config."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    eos = config.eos_token_id
    return config.vocab_size, (eos,) if isinstance(eos, int) else tuple(eos or ())
