"""The forms of prompts and chats, and what is refused before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.llm_requests import Job, make_jobs, read_chats, read_prompts
from outrider.sampling_params import SamplingParams


def forms(prompts: Any) -> list[tuple[str, str | None, list[int], str]]:
    return [(p.where, p.text, list(p.token_ids), p.cache_salt) for p in read_prompts(prompts)]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("a", [("prompts", "a", [], "")]),
        ([1, 2], [("prompts", None, [1, 2], "")]),
        ((1, 2), [("prompts", None, [1, 2], "")]),
        (["a", "b"], [("prompts[0]", "a", [], ""), ("prompts[1]", "b", [], "")]),
        ([[1], [2, 3]], [("prompts[0]", None, [1], ""), ("prompts[1]", None, [2, 3], "")]),
        (["a", [1]], [("prompts[0]", "a", [], ""), ("prompts[1]", None, [1], "")]),
        ({"prompt": "a"}, [("prompts", "a", [], "")]),
        ({"prompt": "a", "prompt_token_ids": [4]}, [("prompts", None, [4], "")]),
        ([{"prompt": "a", "cache_salt": "s"}], [("prompts[0]", "a", [], "s")]),
        ([], []),
        ([[]], [("prompts[0]", None, [], "")]),
    ],
)
def test_forms_of_prompts(prompts: Any, expected: list[Any]) -> None:
    assert forms(prompts) == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (3, "prompts: 3 is not allowed; must be a text, token ids, a dict"),
        (b"a", "prompts: b'a' is not allowed"),
        (None, "prompts: None is not allowed"),
        ([1.5], r"prompts\[0\]: 1.5 is not allowed; must be a text or a list of token ids"),
        ([[1, "a"]], r"prompts\[0\]\[1\]: 'a' is not allowed; must be a token id"),
        ([[True]], r"prompts\[0\]\[0\]: True is not allowed"),
        ([[-1]], r"prompts\[0\]\[0\]: -1 is not allowed"),
        ([{"text": "a"}], r"prompts\[0\]: key 'text' is not supported"),
        ([{"multi_modal_data": {}}], r"prompts\[0\]: key 'multi_modal_data' is not supported"),
        ([{"cache_salt": "a"}], r"prompts\[0\]: has neither prompt nor prompt_token_ids"),
        ({"prompt": "a", "cache_salt": 1}, "prompts: cache_salt: 1 is not a string"),
    ],
)
def test_wrong_prompts_are_named(prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_prompts(prompts)


def chats(messages: Any, **changes: Any) -> Any:
    return read_chats(
        messages,
        **{
            "add_generation_prompt": True,
            "continue_final_message": False,
            "chat_template": None,
            "chat_template_kwargs": None,
            "tools": None,
            **changes,
        },
    )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"messages: \[\] is not allowed"),
        ("hi", "messages: 'hi' is not allowed; must be a list of messages"),
        ([{"content": "a"}], r"messages\[0\].role: null is not allowed"),
        ([{"role": "user"}], r"messages\[0\].content: null is not allowed"),
        (
            [[{"role": "user", "content": "a"}], [{"role": "user", "content": 1}]],
            r"messages\[1\]\[0\].content: 1 is not allowed",
        ),
        ([[]], r"messages\[0\]: \[\] is not allowed; must be at least one message"),
    ],
)
def test_wrong_messages_are_named(messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chats(messages)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="tools: is not JSON"):
        chats([{"role": "user", "content": "a"}], tools=[{"f": print}])


def jobs(count: int, params: Any, **changes: Any) -> list[Job]:
    seeds = iter(range(100, 200))
    return make_jobs(
        read_prompts(["a"] * count),
        params,
        **{
            "speculative_decoding": None,
            "priority": None,
            "detailed": False,
            "draw_seed": lambda: next(seeds),
            **changes,
        },
    )


def test_prompts_without_a_seed_draw_one_each_in_order() -> None:
    params = [SamplingParams(), SamplingParams(seed=7), SamplingParams()]
    assert [job.seed for job in jobs(3, params)] == [100, 7, 101]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([SamplingParams()], "sampling_params: 1 of them for 2 prompts"),
        (3, "sampling_params: 3 is not allowed; must be a SamplingParams or a list"),
        ([SamplingParams(), {}], r"sampling_params\[1\]: {} is not a SamplingParams"),
    ],
)
def test_wrong_params_are_named(params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jobs(2, params)


def test_priorities_are_one_for_each_prompt() -> None:
    with pytest.raises(ValueError, match="priority: 1 numbers for 2 prompts"):
        jobs(2, SamplingParams(), priority=[1])


def test_params_that_were_changed_are_checked_again() -> None:
    params = SamplingParams()
    params.top_p = 7
    with pytest.raises(ValueError, match="top_p: 7 is not allowed"):
        jobs(1, params)
