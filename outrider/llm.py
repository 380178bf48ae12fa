"""`outrider.LLM`: the target model and its proposers in this process, without any server.

Knows vLLM's offline interface; what answers is the verifier's own engine and text layer. Light
until an `LLM` is made: torch and the verifier are imported then.
"""

from __future__ import annotations

import logging
import queue
import random
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from outrider.errors import OperationError
from outrider.llm_metrics import Metric, speculation_metrics, token_metrics
from outrider.llm_options import (
    check_options,
    check_speculation,
    verifier_settings,
)
from outrider.llm_outputs import RequestOutput
from outrider.llm_progress import open_bar
from outrider.sampling_params import SamplingParams

if TYPE_CHECKING:
    from outrider.llm_requests import Job, Prompt

logger = logging.getLogger(__name__)

# Drawn seeds have as many bits as those that a verifier draws.
_SEED_BITS = 53
# How late a Ctrl-C may be noticed.
_SIGNALS_S = 0.5

# What `generate` waits for: a job's number and how it ended, or None once there is nothing more.
_Event = tuple[int, RequestOutput | Exception] | None


class LLM:
    """A model that answers prompts in this process, with speculation where it is configured.

    `model` is a folder, a name that `outrider models` knows, or a hub id. `speculative_config` is
    what `--speculative-config` takes: a dict, or a list of dicts for several proposers; None
    decodes plainly, as in vLLM. With `proposers=[ADDRESS, ...]` running ones are attached instead.
    Other keywords are those of `LLMOptions`. Requests without a seed draw theirs from `seed`, so
    that equal programs give equal answers; with `seed=None` they differ.

    Use it as a context manager, or call `shutdown`; otherwise it ends with the process. Raises
    InputError where an option or the model cannot be used; options before any weight is read.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        from outrider.llm_loading import find_models, load

        checked = check_options(options)
        speculation = check_speculation(speculative_config, checked)
        found, configs = find_models(model, checked, speculation.configs)
        settings = verifier_settings(found, checked, speculation)
        self._name = settings.served_model_name
        self._detailed = checked.per_request_spec_decode_metrics == "detailed"
        self._seeds = random.Random(checked.seed) if checked.seed is not None else None
        for config in speculation.configs:
            logger.info("%s", config)
        self._engine = load(settings, configs, checked)
        # Also at the end of the process, and when nobody holds the object any more.
        self._close = weakref.finalize(self, self._engine.close)

    def generate(
        self,
        prompts: str | Sequence[int] | Mapping[str, Any] | Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Sequence[int] | None = None,
        speculative_decoding: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all at once; the results are in the order of the prompts.

        A prompt is a text, a list of token ids, or a dict with `prompt` or `prompt_token_ids` and
        perhaps a `cache_salt`. `sampling_params` is one for all or one for each; None takes
        `get_default_sampling_params()`. `use_tqdm` False shows no progress, a callable makes the
        bar. `priority` has a number for each prompt: the lower, the sooner. `speculative_decoding`
        says how this call speculates: `{"enabled": False}`, `{"num_speculative_tokens": 3}`,
        `{"proposer": "ngram"}`.

        Raises ValueError where a prompt or parameter cannot be used: then nothing is returned and
        the call's other prompts are aborted. Raises OperationError where the engine failed. A
        KeyboardInterrupt aborts the prompts, too; the next call finds the engine as it was.
        """
        from outrider.llm_requests import read_prompts

        return self._answer(
            read_prompts(prompts), sampling_params, use_tqdm, priority, speculative_decoding
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: Sequence[int] | None = None,
        speculative_decoding: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template.

        `messages` are OpenAI's. `chat_template` is a Jinja template instead of the model's own;
        `tools` and `chat_template_kwargs` are given to it. The rest is as in `generate`.
        """
        from outrider.llm_requests import read_chats

        chats = read_chats(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
            tools=tools,
        )
        return self._answer(chats, sampling_params, use_tqdm, priority, speculative_decoding)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json asks for, else the neutral values."""
        defaults = self._engine.generations.limits.defaults
        values = {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
        }
        if defaults.max_tokens is not None:
            values["max_tokens"] = defaults.max_tokens
        return SamplingParams(**values)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, as transformers has it. Not while a call runs."""
        return self._engine.backend.text.tokenizer

    def get_metrics(self) -> list[Metric]:
        """Sums since start, under vLLM's names; those of speculation where it is configured."""
        ledger = self._engine.generations.ledger
        return [
            *speculation_metrics(ledger.acceptance, self._name),
            *token_metrics(ledger.prompt_tokens, ledger.generation_tokens, self._name),
        ]

    def shutdown(self) -> None:
        """End the engine and its threads; calls that still run return what there is. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "" if self._close.alive else ", shut down"
        return f"LLM(model={self._name!r}{state})"

    def _answer(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
        priority: Sequence[int] | None,
        speculative_decoding: Mapping[str, Any] | None,
    ) -> list[RequestOutput]:
        from outrider.llm_requests import make_jobs

        if not self._close.alive:
            raise OperationError("the LLM is shut down; make a new one")
        jobs = make_jobs(
            prompts,
            self.get_default_sampling_params() if sampling_params is None else sampling_params,
            speculative_decoding=speculative_decoding,
            priority=priority,
            detailed=self._detailed,
            draw_seed=self._draw_seed,
        )
        if not jobs:
            return []
        events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        bar = open_bar(use_tqdm, len(jobs))
        try:
            # An error or a KeyboardInterrupt leaves nothing of this call in the engine.
            with self._engine.running(
                jobs,
                lambda number, end: events.put((number, end)),
                tokens=bar.tokens,
                ended=lambda: events.put(None),
            ):
                return _gather(jobs, events, bar.prompt)
        finally:
            bar.close()

    def _draw_seed(self) -> int:
        return (
            secrets.randbits(_SEED_BITS)
            if self._seeds is None
            else self._seeds.getrandbits(_SEED_BITS)
        )


def _gather(
    jobs: Sequence[Job], events: queue.SimpleQueue[_Event], progress: Callable[[], None]
) -> list[RequestOutput]:
    """All results in order. Raises the first error as soon as it is known."""
    outputs: dict[int, RequestOutput] = {}
    while len(outputs) < len(jobs):
        try:
            # A signal that another thread is handed wakes nobody who waits without an end.
            event = events.get(timeout=_SIGNALS_S)
        except queue.Empty:
            continue
        if event is None:
            raise OperationError("the LLM was shut down while it answered")
        number, end = event
        if isinstance(end, Exception):
            raise _explained(end, jobs[number].prompt.where) from end
        outputs[number] = end
        progress()
    return [outputs[number] for number in range(len(jobs))]


def _explained(error: Exception, where: str) -> Exception:
    """The caller's view of what went wrong with the prompt at `where`."""
    import grpc

    from verifier_service.request_error import RequestError

    if not isinstance(error, RequestError):
        return OperationError(f"{where}: {type(error).__name__}: {error}")
    text = f"{where}: {error.message}"
    refused = error.status is grpc.StatusCode.INVALID_ARGUMENT
    return ValueError(text) if refused else OperationError(text)
