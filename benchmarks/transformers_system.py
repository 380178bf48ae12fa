"""transformers' `generate`, plain and with prompt lookup: the yardstick everybody has.

Knows transformers; runs in the benchmark's own process, with torch's default threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.systems import Answer, Work


def load_tokenizer(model: Path) -> Any:
    """The tokenizer in `model`, with its chat template."""
    return AutoTokenizer.from_pretrained(model)


def load_model(model: Path, dtype: torch.dtype) -> Any:
    """The causal LM in `model`, in evaluation mode."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype).train(False)


class TransformersSystem:
    """Static batches, left-padded; `prompt_lookup` is prompt_lookup_num_tokens, 0 for plain."""

    def __init__(self, model: Any, prompt_lookup: int = 0) -> None:
        self._model = model
        self._prompt_lookup = prompt_lookup

    @torch.inference_mode()
    def generate(self, work: Work) -> Answer:
        """One static batch of the clients' prompts after the other."""
        seconds = 0.0
        outputs: list[tuple[int, ...]] = []
        for first in range(0, len(work.prompts), work.at_once):
            batch = slice(first, first + work.at_once)
            lengths = work.lengths[batch]
            spent, answers = self._batch(work.prompts[batch], max(lengths), work)
            seconds += spent
            outputs += (
                tuple(self._cut(answer, length, work))
                for answer, length in zip(answers, lengths, strict=True)
            )
        return Answer(seconds, tuple(outputs))

    def _batch(
        self, prompts: Sequence[tuple[int, ...]], new_tokens: int, work: Work
    ) -> tuple[float, list[list[int]]]:
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        options = self._options(new_tokens, work)
        torch.manual_seed(work.seed)
        started = time.perf_counter()
        output = self._model.generate(ids, attention_mask=mask, **options)
        seconds = time.perf_counter() - started
        return seconds, [row[longest:].tolist() for row in output]

    def _options(self, new_tokens: int, work: Work) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_new_tokens": new_tokens,
            "do_sample": work.temperature > 0,
            "pad_token_id": 0,
        }
        if work.temperature > 0:
            options |= {"temperature": work.temperature, "top_k": 0, "top_p": 1.0}
        if not work.stop_at_eos:
            # -1 is no token: generation goes on behind an end-of-sequence token.
            options["eos_token_id"] = -1
        if self._prompt_lookup:
            options["prompt_lookup_num_tokens"] = self._prompt_lookup
        return options

    def _cut(self, output: list[int], length: int, work: Work) -> list[int]:
        eos = self._model.generation_config.eos_token_id
        ends = {eos} if isinstance(eos, int) else set(eos or ())
        if work.stop_at_eos:
            for index, token in enumerate(output[:length]):
                if token in ends:
                    return output[: index + 1]
        return output[:length]
