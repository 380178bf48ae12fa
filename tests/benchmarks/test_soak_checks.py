"""What a soak says of answers: nothing of right ones, the breach of each wrong one."""

from __future__ import annotations

from typing import Any

import pytest
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from benchmarks.soak_answers import Answer, read_chunk, read_message, read_whole
from benchmarks.soak_checks import breaches, expected_choices
from benchmarks.soak_draw import Place, SoakRequest
from benchmarks.soak_texts import tool


def request(place: Place = Place.COMPLETIONS, **changes: Any) -> SoakRequest:
    body: dict[str, Any] = {"max_tokens": 4}
    body["messages" if place.is_chat else "prompt"] = [{}] if place.is_chat else "x"
    given = {name: changes.pop(name) for name in ("refused", "matches") if name in changes}
    return SoakRequest(0, place, body | changes, (), **given)


def whole(text: str = "abc", **changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [5, 6, 7, 8],
        "prompt_token_ids": [1],
        "logprobs": None,
    } | changes
    return {
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5},
        "metrics": {
            "speculative_decoding": {"num_draft_tokens": 3, "num_accepted_draft_tokens": 2}
        },
    }


def answered(value: dict[str, Any] | None = None, **changes: Any) -> Answer:
    answer = Answer(status=200)
    read_whole(answer, whole() if value is None else value)
    for name, item in changes.items():
        setattr(answer, name, item)
    return answer


def says(asked: SoakRequest, answer: Answer) -> str:
    return "; ".join(breaches(asked, answer))


def test_a_right_answer_has_no_breach() -> None:
    assert breaches(request(), answered()) == []


def test_what_the_client_did_not_cause_is_told() -> None:
    assert "no end within" in says(request(), Answer(status=200, broken="no end within 5 s"))
    assert "status 503" in says(request(), Answer(status=503, message="gone"))
    assert "status 400" in says(request(), Answer(status=400, message="no such field"))
    # Also where the client had meant to leave.
    assert "status 500" in says(request(), Answer(status=500, left=True))
    assert breaches(request(), Answer(left=True)) == []


def test_a_refusal_must_be_a_400_that_names_the_field() -> None:
    bad = request(refused="top_p")
    assert breaches(bad, Answer(status=400, param="top_p")) == []
    assert "names 'top_k', not 'top_p'" in says(bad, Answer(status=400, param="top_k"))
    assert "status 200 where 400" in says(bad, answered())
    assert "status 500 where 400" in says(bad, Answer(status=500))


@pytest.mark.parametrize(
    ("asked", "given", "words"),
    [
        ({}, {"finish_reason": None}, "finish_reason None"),
        ({"max_tokens": 3}, {}, "4 tokens where 3"),
        ({"max_tokens": 9}, {}, "ended by length after 4 of 9"),
        ({"min_tokens": 5, "max_tokens": 9}, {"finish_reason": "stop"}, "at least 5"),
        ({"allowed_token_ids": [5, 6, 7]}, {}, "tokens [8] are not allowed"),
        ({"logprobs": 0}, {}, "log-probabilities of None tokens of 4"),
        ({"stop": ["b"]}, {}, "has the stop strings ['b']"),
        ({"stop": "b"}, {"text": "a", "stop_reason": "c"}, "'c' was not asked for"),
        (
            {"stop": ["b"], "include_stop_str_in_output": True},
            {"text": "a", "stop_reason": "b", "finish_reason": "stop"},
            "does not end with the stop string",
        ),
        ({"prompt_logprobs": 0}, {}, "prompt_logprobs are missing"),
    ],
)
def test_each_promise_of_a_field_is_checked(
    asked: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    assert words in says(request(**asked), answered(whole(**given)))


def test_a_stop_string_among_the_first_tokens_is_passed_over() -> None:
    asked = request(stop=["b"], min_tokens=4)
    assert breaches(asked, answered()) == []
    assert "has the stop strings" in says(request(stop=["b"], min_tokens=0), answered())


def test_promises_that_are_kept_are_no_breach() -> None:
    asked = request(
        max_tokens=4,
        min_tokens=4,
        allowed_token_ids=[5, 6, 7, 8],
        logprobs=2,
        stop=["c"],
        include_stop_str_in_output=True,
    )
    given = whole(finish_reason="stop", stop_reason="c", logprobs={"tokens": ["?"] * 4})
    assert breaches(asked, answered(given)) == []


@pytest.mark.parametrize(
    ("figures", "asked", "words"),
    [
        ((3, 4), {}, "more accepted than drafted"),
        ((3, 2), {"speculative_decoding": {"enabled": False}}, "3 drafts where speculation"),
        ((3, 2), {"speculative_decoding": {"num_speculative_tokens": 0}}, "3 drafts where"),
    ],
)
def test_statistics_must_be_possible(
    figures: tuple[int, int], asked: dict[str, Any], words: str
) -> None:
    drafted, accepted = figures
    value = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted}
    assert words in says(request(**asked), answered(speculation=value))


def test_usage_must_add_up() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 6}
    assert "does not add up" in says(request(), answered(usage=usage))
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    assert "completion_tokens 3 of 4 ids" in says(request(), answered(usage=usage))


def test_every_choice_must_come() -> None:
    asked = request(prompt=["x", "y"], n=2)
    assert expected_choices(asked) == 4
    assert expected_choices(request(prompt=[1, 2], n=3)) == 3
    assert "choices [0] where 4" in says(asked, answered())


def test_a_whole_text_must_match_its_format_and_a_cut_one_need_not() -> None:
    asked = request(matches=lambda text: text == "yes")
    assert "does not match" in says(asked, answered(whole("no", finish_reason="stop")))
    assert breaches(asked, answered(whole("yes", finish_reason="stop"))) == []
    assert breaches(asked, answered(whole("ye"))) == []
    cut = whole("ye", finish_reason="stop", stop_reason="s")
    assert breaches(asked, answered(cut)) == []


def test_a_text_that_shows_its_end_is_not_held_to_its_format() -> None:
    shown: dict[str, Any] = {
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    given = answered(whole("yes<|end|>", finish_reason="stop"))
    asked = request(matches=lambda text: text == "yes", **shown)
    assert breaches(asked, given) == []
    shown.pop("include_stop_str_in_output")
    asked = request(matches=lambda text: text == "yes", **shown)
    assert "does not match" in says(asked, given)


def chat_chunks(arguments: list[str]) -> Answer:
    answer = Answer(status=200)
    for index, piece in enumerate(arguments):
        function = {"arguments": piece} | ({"name": "tides"} if index == 0 else {})
        delta = {"tool_calls": [{"index": 0, "function": function}]}
        read_chunk(answer, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    read_chunk(answer, {"choices": [end]})
    return answer


def test_a_forced_tool_must_be_called_with_what_it_takes() -> None:
    asked = request(Place.CHAT, tools=[tool("tides")], tool_choice="required", stream=True)
    assert breaches(asked, chat_chunks(['{"har', 'bor": "kiel"}'])) == []
    assert "was called with" in says(asked, chat_chunks(['{"harbor": "oslo"}']))
    assert "no tool was called" in says(asked, answered(whole(finish_reason="stop")))
    unasked = request(Place.CHAT, stream=True)
    assert "called unasked" in says(unasked, chat_chunks(['{"harbor": "kiel"}']))


def test_a_grpc_answer_is_read_like_an_http_one() -> None:
    answer = Answer(status=200)
    delta = pb.Delta(text="ab", token_ids=[5, 6], logprobs=[pb.TokenLogprob(), pb.TokenLogprob()])
    finished = pb.Finished(
        reason=types_pb2.FINISH_REASON_STOP,
        stop_string="b",
        prompt_tokens=3,
        completion_tokens=2,
    )
    read_message(answer, pb.GenerateResponse(started=pb.Started(prompt_token_ids=[1, 2, 3])))
    read_message(answer, pb.GenerateResponse(delta=delta))
    read_message(answer, pb.GenerateResponse(finished=finished))
    choice = answer.choices[0]
    assert (choice.text, choice.ids, choice.prompt_ids) == ("ab", [5, 6], [1, 2, 3])
    assert (choice.finish_reason, choice.stop_reason, choice.logprobs) == ("stop", "b", 2)
    asked = request(Place.GRPC_TEXT, stop=["b"], include_stop_str_in_output=True, logprobs=0)
    assert breaches(asked, answer) == []
    aborted = Answer(status=200)
    read_message(
        aborted,
        pb.GenerateResponse(finished=pb.Finished(reason=types_pb2.FINISH_REASON_ABORT)),
    )
    assert "finish_reason 'abort'" in says(request(Place.GRPC_TEXT), aborted)


def test_tokenize_and_detokenize_are_checked() -> None:
    asked = SoakRequest(0, Place.TOKENIZE, {"prompt": "x", "return_token_strs": True}, ())
    right = {"count": 2, "tokens": [1, 2], "token_strs": ["a", "b"]}
    assert breaches(asked, answered(right)) == []
    assert "count 3 of 2" in says(asked, answered(right | {"count": 3}))
    assert "token_strs" in says(asked, answered(right | {"token_strs": None}))
    back = SoakRequest(0, Place.DETOKENIZE, {"tokens": [1]}, ())
    assert breaches(back, answered({"prompt": "x"})) == []
    assert "no prompt" in says(back, answered({}))
