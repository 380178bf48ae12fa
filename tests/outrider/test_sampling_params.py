"""SamplingParams by itself: vLLM's defaults, and what is refused in which words."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from outrider import SamplingParams, StructuredOutputsParams

DEFAULTS: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "truncate_prompt_tokens": None,
    "structured_outputs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
}


def test_fields_and_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in SamplingParams.model_fields} == DEFAULTS


@pytest.mark.parametrize(
    ("field", "good"),
    [
        ("n", [1, 16384]),
        ("presence_penalty", [-2, 2.0]),
        ("frequency_penalty", [-2, 2.0]),
        ("repetition_penalty", [0.01, 5]),
        ("temperature", [0, 1e-9, 2]),
        ("top_p", [0.001, 1]),
        ("top_k", [-1, 0, 1, 10**6]),
        ("min_p", [0, 1]),
        ("seed", [-(2**63), 2**63 - 1, None]),
        ("stop", ["a", ["a", "b"], [], None]),
        ("stop_token_ids", [[0, 2**31 - 1], None]),
        ("ignore_eos", [True]),
        ("max_tokens", [1, None]),
        ("min_tokens", [0, 16]),
        ("logprobs", [0, 5, -1, None]),
        ("prompt_logprobs", [0, 5, -1, None]),
        ("detokenize", [False]),
        ("truncate_prompt_tokens", [-1, 1, None]),
        ("logit_bias", [{3: -100, 4: 0.5}, {}]),
        ("allowed_token_ids", [[3]]),
        ("bad_words", [["a"], []]),
        ("structured_outputs", [{"regex": "a"}, StructuredOutputsParams(choice=["a"])]),
    ],
)
def test_edge_values_are_taken(field: str, good: list[Any]) -> None:
    for value in good:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "bad", "message"),
    [
        ("n", [0, 16385, 1.5, True, None], "must be an integer from 1 to 16384"),
        ("presence_penalty", [-2.1, 2.1, "0", float("nan")], "must be a number from -2 to 2"),
        ("frequency_penalty", [-2.1, 2.1], "must be a number from -2 to 2"),
        ("repetition_penalty", [0, -1, float("inf")], "must be a number above 0"),
        ("temperature", [-0.1, 2.1, None, "hot"], "must be a number from 0 to 2"),
        ("top_p", [0, 1.1, -1], "must be a number above 0, at most 1"),
        ("top_k", [-2, 1.5], "must be an integer: 1 and above, or 0 or -1"),
        ("min_p", [-0.1, 1.1], "must be a number from 0 to 1"),
        ("seed", [2**63, -(2**63) - 1, 1.0], "must be None or a signed 64-bit integer"),
        ("stop", ["", ["a", ""], 3, [3]], "strings of at least one character"),
        ("stop_token_ids", [[-1], ["a"], 3], "must be a list of token ids"),
        ("ignore_eos", [1, None], "must be True or False"),
        ("max_tokens", [0, -1, 1.5], "must be None or an integer of 1 and above"),
        ("min_tokens", [-1, 2**31], "must be an integer from 0 to max_tokens"),
        ("min_tokens", [17], "must be at most max_tokens, which is 16"),
        ("logprobs", [-2, True, "5"], "must be None, how many top tokens"),
        ("prompt_logprobs", [-2], "must be None, how many top tokens"),
        ("truncate_prompt_tokens", [0, -2], "truncate_prompt_tokens: "),
        ("logit_bias", [{"3": 1.0}, {3: "a"}, [3]], "must be a dict of token ids and numbers"),
        ("allowed_token_ids", [[], [-1]], "must be a list of at least one token id"),
        ("bad_words", ["a", [1]], "must be a list of strings"),
        ("structured_outputs", [{}, StructuredOutputsParams()], "names no structure"),
        ("structured_outputs", [{"json": "{}", "regex": "a"}], "json and regex given; exactly one"),
        ("structured_outputs", [{"jsn": {}}], r"structured_outputs\.jsn: no such field"),
        ("structured_outputs", [{"choice": [1]}], r"structured_outputs\.choice: \[1\] is not"),
        ("structured_outputs", [{"regex": "a", "whitespace_pattern": " "}], "is not supported"),
        ("structured_outputs", ["json"], "must be None, a StructuredOutputsParams or a dict"),
        ("best_of", [2, 0], "best_of: .* is not supported: answers are not ranked; send n"),
        ("logits_processors", [[print]], "logits_processors: .* is not supported"),
        ("guided_decoding", [{}], "is not supported: send structured_outputs"),
        ("thinking_token_budget", [5], "is not supported"),
        ("temprature", [1], "SamplingParams has no such field; did you mean temperature"),
    ],
)
def test_bad_values_are_refused_by_name(field: str, bad: list[Any], message: str) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=message) as caught:
            SamplingParams(**{field: value})
        assert str(caught.value).startswith(field) and "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [{"best_of": 1}, {"best_of": None}, {"logits_processors": []}])
def test_an_unsupported_field_may_ask_for_nothing(values: dict[str, Any]) -> None:
    assert SamplingParams(**values) == SamplingParams()


def test_several_greedy_answers_would_be_equal() -> None:
    with pytest.raises(ValueError, match="n: 2 is not allowed at temperature 0"):
        SamplingParams(n=2, temperature=0)


def test_what_was_set_later_is_checked_when_it_is_used() -> None:
    params = SamplingParams()
    params.max_tokens, params.min_tokens = 100, 50
    assert params.checked() == SamplingParams(max_tokens=100, min_tokens=50)
    params.temperature = 9
    with pytest.raises(ValueError, match="temperature: 9"):
        params.checked()


def test_copies_are_equal_and_apart() -> None:
    params = SamplingParams(stop=["a"], structured_outputs=StructuredOutputsParams(regex="a"))
    for twin in (params.clone(), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert twin == params and twin.stop is not params.stop


def test_from_optional_takes_none_as_left_out() -> None:
    assert SamplingParams.from_optional(temperature=None, top_k=3) == SamplingParams(top_k=3)
    assert SamplingParams.from_optional(max_tokens=None).max_tokens is None


def test_it_shows_what_differs_from_the_defaults() -> None:
    assert repr(SamplingParams(temperature=0.5, max_tokens=9)) == (
        "SamplingParams(temperature=0.5, max_tokens=9)"
    )


def test_importing_it_imports_no_torch_and_no_server() -> None:
    program = (
        "import sys\n"
        "import outrider\n"
        "assert not {'pydantic', 'grpc', 'torch'} & sys.modules.keys()\n"
        "from outrider import LLM, CompletionOutput, Logprob, RequestOutput, SamplingParams\n"
        "SamplingParams(structured_outputs={'choice': ['a']})\n"
        "assert not {'torch', 'transformers', 'starlette', 'uvicorn'} & sys.modules.keys()\n"
        "assert set(outrider.__all__) <= set(dir(outrider))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_other_names_are_no_attributes() -> None:
    import outrider

    with pytest.raises(AttributeError, match="'outrider' has no attribute 'Llm'"):
        _ = outrider.Llm
