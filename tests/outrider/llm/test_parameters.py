"""Every field of SamplingParams, and every argument of `generate`, reaches the core or the answer.

The table is compared with the fields: a new one that nobody passes on fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outrider import RequestOutput, SamplingParams, StructuredOutputsParams
from tests.fakes import FakeCore, rounds
from tests.outrider.llm.conftest import SPECULATION, MakeLLM
from tests.verifier_service.serving import encode
from verifier_service.messages import FinishReason, Output, Request, TokenLogprob

ANSWER = "a dog<|start|> and STOP the rest"
END = encode(".")[0]

# What the core was given, and what the caller got.
Check = Callable[[Request, RequestOutput], object]


def script(request: Request) -> list[Output]:
    """The answer, then the end-of-sequence id; with log-probabilities where asked for."""
    outputs = rounds(
        [*encode(ANSWER), END], per_round=3, reason=FinishReason.STOP, stop_token_id=END
    )
    top = ((8, -0.5), (9, -1.5))
    if request.sampling.logprobs >= 0:
        outputs = [
            replace(output, logprobs=tuple(TokenLogprob(i, -2.0, 7, top) for i in output.token_ids))
            for output in outputs
        ]
    if request.sampling.prompt_logprobs >= 0:
        told = tuple(TokenLogprob(i, -1.0, 3, top) for i in request.prompt_ids[1:])
        outputs[0] = replace(outputs[0], prompt_logprobs=told)
    return outputs


def reached(name: str, value: object) -> Check:
    """The field of the same name in `Sampling` has this value."""
    return lambda request, _: getattr(request.sampling, name) == value


def text(output: RequestOutput) -> str:
    return output.outputs[0].text


FIELDS: dict[str, tuple[Any, Check]] = {
    "n": (3, lambda _, output: len(output.outputs) == 3),
    "presence_penalty": (0.5, reached("presence_penalty", 0.5)),
    "frequency_penalty": (-0.5, reached("frequency_penalty", -0.5)),
    "repetition_penalty": (1.5, reached("repetition_penalty", 1.5)),
    "temperature": (0.25, reached("temperature", 0.25)),
    "top_p": (0.5, reached("top_p", 0.5)),
    "top_k": (7, reached("top_k", 7)),
    "min_p": (0.125, reached("min_p", 0.125)),
    "seed": (-5, reached("seed", -5)),
    "stop": (["STOP"], lambda _, o: text(o) == "a dog and " and o.outputs[0].stop_reason == "STOP"),
    "stop_token_ids": ([5], reached("stop_token_ids", frozenset({5, END}))),
    "ignore_eos": (True, reached("stop_token_ids", frozenset())),
    "max_tokens": (40, reached("max_tokens", 40)),
    "min_tokens": (3, reached("min_tokens", 3)),
    "logprobs": (
        2,
        lambda r, o: (
            r.sampling.logprobs == 2
            and o.outputs[0].cumulative_logprob == -2.0 * len(o.outputs[0].token_ids)
            and {8, 9} < set((o.outputs[0].logprobs or [])[0])
        ),
    ),
    "prompt_logprobs": (
        0,
        lambda r, o: (
            r.sampling.prompt_logprobs == 0
            and o.prompt_logprobs is not None
            and o.prompt_logprobs[0] is None
            and (o.prompt_logprobs[1] or {})[r.prompt_ids[1]].rank == 3
        ),
    ),
    "detokenize": (False, lambda _, o: text(o) == "" and o.outputs[0].token_ids),
    "skip_special_tokens": (False, lambda _, o: "<|start|>" in text(o)),
    "spaces_between_special_tokens": (False, lambda _, o: text(o) == "a dog and STOP the rest"),
    "include_stop_str_in_output": (True, lambda _, o: text(o).endswith("rest.")),
    "truncate_prompt_tokens": (1, lambda r, o: r.prompt_ids == encode("the cat")[-1:]),
    "structured_outputs": (
        StructuredOutputsParams(regex="[a-z]+"),
        lambda r, _: r.constraint is not None,
    ),
    "logit_bias": ({9: 2.5}, reached("logit_bias", ((9, 2.5),))),
    "allowed_token_ids": ([8, 9], reached("allowed_token_ids", (8, 9))),
    "bad_words": (["cat"], lambda r, _: tuple(encode("cat")) in r.sampling.bad_words),
}


def test_the_table_has_every_field() -> None:
    assert FIELDS.keys() == SamplingParams.model_fields.keys()


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_has_its_effect(scripted_llm: MakeLLM, field: str) -> None:
    value, check = FIELDS[field]
    for with_field in (True, False):
        core = FakeCore(script, eos_token_ids=(END,))
        llm = scripted_llm(core, speculative_config=SPECULATION)
        params = SamplingParams(**{field: value} if with_field else {"seed": 1})
        (output,) = llm.generate("the cat", params, use_tqdm=False)
        # A check that holds without the field would say nothing of it.
        if with_field or field != "spaces_between_special_tokens":
            assert bool(check(core.submitted[0], output)) == with_field


def test_explicit_neutral_values_win_over_the_generation_config(
    scripted_llm: MakeLLM, toy_folder: Any
) -> None:
    file = toy_folder / "generation_config.json"
    file.write_text('{"temperature": 0.5, "top_k": 3, "top_p": 0.5, "eos_token_id": 1}')
    try:
        core = FakeCore(script)
        llm = scripted_llm(core, speculative_config=SPECULATION)
    finally:
        file.unlink()
    llm.generate("the cat", SamplingParams(), use_tqdm=False)
    llm.generate("the cat", use_tqdm=False)
    told = [(r.sampling.temperature, r.sampling.top_k, r.sampling.top_p) for r in core.submitted]
    assert told == [(1.0, 0, 1.0), (0.5, 3, 0.5)]
    assert [r.sampling.max_tokens for r in core.submitted] == [16, 16]


@pytest.mark.parametrize(
    ("asked", "check"),
    [
        ({"speculative_decoding": {"enabled": False}}, lambda r: r.num_speculative_tokens == 0),
        (
            {"speculative_decoding": {"num_speculative_tokens": 3}},
            lambda r: r.num_speculative_tokens == 3,
        ),
        ({"speculative_decoding": {"proposer": "suffix"}}, lambda r: r.proposer == "suffix"),
        ({"priority": [-7]}, lambda r: r.priority == -7),
    ],
)
def test_an_argument_reaches_the_core(
    scripted_llm: MakeLLM, asked: dict[str, Any], check: Callable[[Request], object]
) -> None:
    core = FakeCore(script)
    scripted_llm(core, speculative_config=SPECULATION).generate(
        ["the cat"], use_tqdm=False, **asked
    )
    assert check(core.submitted[0])


def test_a_cache_salt_belongs_to_its_prompt(scripted_llm: MakeLLM) -> None:
    core = FakeCore(script)
    llm = scripted_llm(core, speculative_config=SPECULATION)
    llm.generate([{"prompt": "a", "cache_salt": "mine"}, {"prompt": "b"}], use_tqdm=False)
    assert {request.cache_salt for request in core.submitted} == {"mine", ""}


def test_urgent_prompts_enter_the_engine_first(
    scripted_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.llm_engine._IN_FLIGHT", 1)
    core = FakeCore(script)
    llm = scripted_llm(core, speculative_config=SPECULATION)
    outputs = llm.generate(["a", "b", "c"], priority=[2, 0, 1], use_tqdm=False)
    assert [request.prompt_ids for request in core.submitted] == [encode(t) for t in "bca"]
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    assert [output.request_id for output in outputs] == ["0", "1", "2"]


def test_the_end_of_the_sequence_is_no_stop_reason_unless_it_was_asked_for(
    scripted_llm: MakeLLM,
) -> None:
    for asked, reason in ((None, None), ([END], END)):
        core = FakeCore(script, eos_token_ids=(END,))
        llm = scripted_llm(core, speculative_config=SPECULATION)
        (output,) = llm.generate("a", SamplingParams(stop_token_ids=asked), use_tqdm=False)
        completion = output.outputs[0]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", reason)
        assert completion.token_ids[-1] == END and not completion.text.endswith(".")
