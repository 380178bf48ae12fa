from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu_llm_smoke import MODES, SmokeReport, measure


@dataclass
class FakeLLM:
    """Answers with the prompt's first id; with drafts from "both" the last answer is another."""

    asked: list[tuple[Mapping[str, Any], float, int]] = field(default_factory=list)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sequence[Any],
        *,
        use_tqdm: bool,
        speculative_decoding: Mapping[str, Any],
    ) -> list[Any]:
        assert not use_tqdm
        assert [one.seed for one in sampling] == list(range(len(prompts)))
        assert all(one.ignore_eos for one in sampling)
        self.asked.append((speculative_decoding, sampling[0].temperature, sampling[0].max_tokens))
        answers = [[prompt[0]] * sampling[0].max_tokens for prompt in prompts]
        if speculative_decoding == MODES["both"]:
            answers[-1] = [0] * sampling[0].max_tokens
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)]) for ids in answers]


def test_every_mode_answers_at_every_temperature_after_one_that_warms_up() -> None:
    llm: Any = FakeLLM()
    lines = measure(llm, [[5, 6], [7, 8]], (0.0, 1.0), 4)
    assert len(llm.asked) == 1 + 2 * len(MODES)
    assert [(line["mode"], line["temperature"]) for line in lines] == [
        (mode, temperature) for temperature in (0.0, 1.0) for mode in MODES
    ]
    assert [line["same"] for line in lines] == [2, 2, 1] * 2
    assert all(line["tokens_per_second"] > 0 for line in lines)


def test_the_page_has_a_line_for_each() -> None:
    line = {"mode": "ngram", "temperature": 1.0, "tokens_per_second": 1234.5}
    report = SmokeReport("c", {"cpu": "x"}, {}, 9.6, ({**line, "same": 7, "answers": 8},))
    page = report.to_markdown()
    assert "| ngram, T=1 | 1,234 | 7/8 |" in page
    assert "Started in 10 s." in page
    assert report.to_json()["lines"][0]["same"] == 7
