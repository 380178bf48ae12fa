"""`generate` and `chat` over the toy target: results, speculation, seeds, errors, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider import LLM, CompletionOutput, RequestOutput, SamplingParams
from outrider.errors import InputError, OperationError
from outrider.llm_metrics import Counter, Vector
from tests.fakes import FakeCore
from tests.outrider.llm.conftest import SPECULATION, MakeLLM
from tests.verifier_service.serving import answering, encode

QUIET: dict[str, Any] = {"use_tqdm": False}
PROMPTS = ["the cat", "a dog and", "STOP stopping 12", "the cat sat on the mat. the cat"]
RANDOM = SamplingParams(temperature=0.9, max_tokens=40, seed=5, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def answers(outputs: list[RequestOutput]) -> list[list[tuple[str, list[int], Any, Any]]]:
    """What must not depend on speculation."""
    return [
        [(c.text, c.token_ids, c.finish_reason, c.stop_reason) for c in output.outputs]
        for output in outputs
    ]


def drafted(outputs: list[RequestOutput]) -> int:
    """Draft tokens of all answers."""
    return sum(
        c.spec_decode_metrics.num_draft_tokens
        for output in outputs
        for c in output.outputs
        if c.spec_decode_metrics is not None
    )


def test_a_result_has_vllms_shape(toy_llm: MakeLLM) -> None:
    (output,) = toy_llm().generate("the cat", SamplingParams(max_tokens=5, temperature=0), **QUIET)
    assert output.prompt == "the cat" and output.prompt_token_ids == encode("the cat")
    assert output.finished and output.request_id == "0" and output.prompt_logprobs is None
    (completion,) = output.outputs
    assert isinstance(completion, CompletionOutput) and completion.finished()
    assert completion.index == 0 and len(completion.token_ids) == 5
    assert completion.text == toy_llm().get_tokenizer().decode(completion.token_ids)
    assert completion.finish_reason == "length" and completion.stop_reason is None
    assert completion.cumulative_logprob is None and completion.logprobs is None
    assert completion.spec_decode_metrics is None
    metrics = output.metrics
    assert metrics.num_generation_tokens == 5
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts
    assert metrics.first_token_ts <= metrics.last_token_ts and metrics.first_token_latency > 0


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
@pytest.mark.parametrize("config", [SPECULATION[0], SPECULATION[1], SPECULATION])
def test_speculation_changes_no_token(
    toy_llm: MakeLLM, params: SamplingParams, config: Any
) -> None:
    plain = toy_llm().generate(PROMPTS, params, **QUIET)
    fast = toy_llm(speculative_config=config).generate(PROMPTS, params, **QUIET)
    assert answers(fast) == answers(plain)
    assert drafted(fast) > 0 and drafted(plain) == 0


def test_speculation_is_turned_down_and_off_for_a_call(toy_llm: MakeLLM) -> None:
    llm = toy_llm(speculative_config=SPECULATION)
    off = llm.generate(PROMPTS, GREEDY, speculative_decoding={"enabled": False}, **QUIET)
    assert drafted(off) == 0
    one = llm.generate(PROMPTS, GREEDY, speculative_decoding={"num_speculative_tokens": 1}, **QUIET)
    for output in one:
        metrics = output.outputs[0].spec_decode_metrics
        assert metrics is not None and metrics.num_draft_tokens == metrics.num_spec_steps > 0
    named = llm.generate(PROMPTS, GREEDY, speculative_decoding={"proposer": "suffix"}, **QUIET)
    assert answers(off) == answers(one) == answers(named) and drafted(named) > 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"enabled": 1}, "speculative_decoding: enabled"),
        ({"k": 1}, "speculative_decoding: k"),
        ({"num_speculative_tokens": 9}, "must be from 0 to 4"),
        ({"proposer": "eagle"}, "attached proposers: ngram, suffix"),
        ([], "is not a dict"),
    ],
)
def test_a_wrong_override_is_refused(toy_llm: MakeLLM, asked: Any, message: str) -> None:
    llm = toy_llm(speculative_config=SPECULATION)
    with pytest.raises(ValueError, match=message):
        llm.generate("the cat", GREEDY, speculative_decoding=asked, **QUIET)
    assert len(llm.generate("the cat", GREEDY, **QUIET)) == 1


def test_several_answers_have_consecutive_seeds(toy_llm: MakeLLM) -> None:
    llm = toy_llm(speculative_config=SPECULATION)
    three = RANDOM.clone()
    three.n = 3
    (output,) = llm.generate(PROMPTS[:1], three, **QUIET)
    assert [c.index for c in output.outputs] == [0, 1, 2]
    singles = []
    for number in range(3):
        single = RANDOM.clone()
        single.seed = 5 + number
        singles.append(llm.generate(PROMPTS[0], single, **QUIET)[0].outputs[0].token_ids)
    assert [c.token_ids for c in output.outputs] == singles
    assert len({tuple(ids) for ids in singles}) == 3


def test_without_seeds_equal_programs_give_equal_answers(toy_llm: MakeLLM) -> None:
    params = SamplingParams(max_tokens=30, n=2, ignore_eos=True)

    def run(**options: Any) -> tuple[Any, Any]:
        llm = toy_llm(**options)
        return tuple(answers(llm.generate(PROMPTS, params, **QUIET)) for _ in range(2))

    first, again, other = run(), run(speculative_config=SPECULATION), run(seed=1)
    assert first == again
    assert first[0] != first[1] and first != other
    assert run(seed=None) != run(seed=None)


def test_each_prompt_may_have_its_own_params(toy_llm: MakeLLM) -> None:
    params = [SamplingParams(max_tokens=length, temperature=0) for length in (3, 7)]
    outputs = toy_llm().generate(PROMPTS[:2], params, **QUIET)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 7]


def test_without_params_the_models_generation_config_counts(
    toy_llm: MakeLLM, toy_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toy_folder / "generation_config.json"
    file.write_text('{"temperature": 0.5, "top_k": 3, "max_new_tokens": 4, "eos_token_id": 1}')
    try:
        llm = toy_llm()
    finally:
        file.unlink()
    assert llm.get_default_sampling_params() == SamplingParams(
        temperature=0.5, top_k=3, max_tokens=4
    )
    assert len(llm.generate("the cat", **QUIET)[0].outputs[0].token_ids) <= 4
    assert toy_llm().get_default_sampling_params() == SamplingParams()


def test_chat_goes_through_the_template(toy_llm: MakeLLM) -> None:
    llm = toy_llm()
    messages = [{"role": "user", "content": "the cat"}]
    (output,) = llm.chat(messages, GREEDY, **QUIET)
    assert output.prompt == "<|start|>user\nthe cat<|end|><|start|>assistant\n"
    assert output.prompt_token_ids == llm.get_tokenizer().encode(
        output.prompt, add_special_tokens=False
    )
    raw = llm.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY, **QUIET)
    assert answers(raw) == answers([output])
    two = llm.chat([messages, [{"role": "system", "content": "x"}]], GREEDY, **QUIET)
    assert answers(two[:1]) == answers([output]) and "system" in (two[1].prompt or "")


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"add_generation_prompt": False}, "<|start|>user\nhi<|end|>"),
        (
            {"chat_template_kwargs": {"mood": "glad"}},
            "<|start|>user\nhi<|end|>glad<|start|>assistant\n",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "<|start|>user\nhi<|end|>TOOLS1<|start|>assistant\n",
        ),
        ({"chat_template": "{{ messages[0].content }}!"}, "hi!"),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "<|start|>user\nhi",
        ),
    ],
)
def test_chat_options_reach_the_template(
    toy_llm: MakeLLM, options: dict[str, Any], prompt: str
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    (output,) = toy_llm().chat(messages, SamplingParams(max_tokens=1), **options, **QUIET)
    assert output.prompt == prompt


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate(["a", ""]), r"prompts\[1\]: prompt is empty"),
        (lambda llm: llm.generate(["a", [9999]]), r"prompts\[1\]: prompt\[0\] 9999 is not a"),
        (lambda llm: llm.generate("a" * 9999), "prompts: .*maximum context length"),
        (lambda llm: llm.generate("a", SamplingParams(max_tokens=999)), "maximum context"),
        (lambda llm: llm.generate("a", SamplingParams(logit_bias={9999: 1.0})), "logit_bias"),
        (lambda llm: llm.generate("a", SamplingParams(logprobs=21)), "logprobs 21 is not allowed"),
        (
            lambda llm: llm.generate("a", SamplingParams(structured_outputs={"regex": "("})),
            "structured_outputs: the regex cannot be used",
        ),
        (
            lambda llm: llm.chat([{"role": "elf", "content": "a"}]),
            "messages: .*role elf is unknown",
        ),
        (
            lambda llm: llm.chat([{"role": "user", "content": "a"}], continue_final_message=True),
            "continue_final_message true cannot be combined",
        ),
    ],
)
def test_what_the_model_cannot_do_is_a_value_error(
    toy_llm: MakeLLM, call: Callable[[LLM], object], message: str
) -> None:
    llm = toy_llm()
    with pytest.raises(ValueError, match=message):
        call(llm)
    assert len(llm.generate("the cat", GREEDY, **QUIET)) == 1


def test_an_error_aborts_the_calls_other_prompts(scripted_llm: MakeLLM) -> None:
    core = answering()
    core.hold = True
    llm = scripted_llm(core)
    with pytest.raises(ValueError, match=r"prompts\[2\]"):
        llm.generate(["a", "b", ""], GREEDY, **QUIET)
    assert sorted(core.aborted) == sorted(request.request_id for request in core.submitted)


def test_metrics_are_vllms_counters_and_sum_what_was_emitted(toy_llm: MakeLLM) -> None:
    llm = toy_llm(speculative_config=SPECULATION, served_model_name="mine")
    outputs = llm.generate(PROMPTS, RANDOM, **QUIET)
    told = [c.spec_decode_metrics for output in outputs for c in output.outputs]
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    assert all(m.labels == {"model_name": "mine", "engine": "0"} for m in metrics.values())

    def value(name: str) -> int:
        metric = metrics[name]
        assert isinstance(metric, Counter)
        return metric.value

    accepted = value("vllm:spec_decode_num_accepted_tokens")
    assert value("vllm:spec_decode_num_drafts") == sum(m.num_spec_steps for m in told if m)
    assert value("vllm:spec_decode_num_draft_tokens") == sum(m.num_draft_tokens for m in told if m)
    assert accepted == sum(m.num_accepted_draft_tokens for m in told if m) > 0
    per_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(per_position, Vector)
    assert len(per_position.values) == 4 and sum(per_position.values) == accepted
    assert value("vllm:generation_tokens") == 160
    assert value("vllm:prompt_tokens") == sum(len(o.prompt_token_ids) for o in outputs)


def test_a_plain_llm_has_no_speculation_metrics(toy_llm: MakeLLM) -> None:
    names = {metric.name for metric in toy_llm().get_metrics()}
    assert names == {"vllm:prompt_tokens", "vllm:generation_tokens"}


@pytest.mark.parametrize(
    ("form", "steps"), [("none", None), ("summary", False), ("detailed", True)]
)
def test_acceptance_of_each_answer_as_asked_for(
    toy_llm: MakeLLM, form: str, steps: bool | None
) -> None:
    llm = toy_llm(speculative_config=SPECULATION, per_request_spec_decode_metrics=form)
    metrics = llm.generate(PROMPTS[3], GREEDY, **QUIET)[0].outputs[0].spec_decode_metrics
    assert (metrics is not None) == (steps is not None)
    if metrics is not None:
        told = metrics.to_dict()
        assert ("per_step_accepted" in told) == steps
        assert told["mean_acceptance_length"] == 1 + (
            metrics.num_accepted_draft_tokens / metrics.num_spec_steps
        )
        if steps:
            assert sum(metrics.per_step_accepted or ()) == metrics.num_accepted_draft_tokens


def test_an_engine_that_died_is_an_operation_error(scripted_llm: MakeLLM) -> None:
    core = FakeCore(lambda _: [])
    llm = scripted_llm(core)
    core.failure = "the device is gone"
    with pytest.raises(OperationError, match=r"prompts: .*the device is gone"):
        llm.generate("a", GREEDY, **QUIET)


def test_options_are_refused_before_the_model_is_looked_for() -> None:
    with pytest.raises(InputError, match="temperature is a sampling parameter"):
        LLM("/nowhere", speculative_config={"method": "ngram", "temperature": 1})
    with pytest.raises(InputError, match="max_model_len: 0"):
        LLM("/nowhere", max_model_len=0)
    with pytest.raises(InputError, match="model: there is no folder '/nowhere'"):
        LLM("/nowhere")


def test_no_prompts_have_no_results(toy_llm: MakeLLM) -> None:
    assert toy_llm().generate([], GREEDY) == []


def test_a_templates_text_gets_no_further_special_tokens(
    toy_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = toy_llm()
    told: list[bool] = []

    def encode(text: str, *, add_special_tokens: bool, truncation: object) -> list[int]:
        told.append(add_special_tokens)
        return [5]

    monkeypatch.setattr(llm._engine.backend.text, "encode", encode)
    llm.chat([{"role": "user", "content": "hi"}], GREEDY, **QUIET)
    llm.generate("hi", GREEDY, **QUIET)
    assert told == [False, True]
