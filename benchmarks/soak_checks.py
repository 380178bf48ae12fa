"""What must hold of every answer of a soak, whatever was asked for; each breach in words.

Knows the fields' promises and nothing of the server. That the tokens are right is soak_replay.py's
business.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.soak_answers import Answer, Choice
from benchmarks.soak_draw import Place, SoakRequest
from benchmarks.soak_texts import tool_arguments_match

_SERVER_FAULTS = range(500, 600)


def breaches(request: SoakRequest, answer: Answer) -> list[str]:
    """Empty for an answer that is as it should be."""
    if answer.broken:
        return [answer.broken]
    if request.refused is not None and not (answer.left and answer.status == 0):
        return list(_refusal(request, answer))
    if answer.left and answer.status in (0, 200):
        return []
    if answer.status != 200:
        return [f"status {answer.status} for a valid request: {answer.message}"]
    if not request.place.generates:
        return list(_side_answer(request, answer))
    return [
        *_numbers(request, answer),
        *(
            f"choice {index}: {breach}"
            for index, choice in sorted(answer.choices.items())
            for breach in _choice(request, choice)
        ),
    ]


def _refusal(request: SoakRequest, answer: Answer) -> Iterator[str]:
    if answer.status != 400:
        yield f"status {answer.status} where 400 is right: {answer.message}"
    elif answer.param != request.refused:
        yield f"the 400 names {answer.param!r}, not {request.refused!r}: {answer.message}"


def _side_answer(request: SoakRequest, answer: Answer) -> Iterator[str]:
    whole = answer.whole or {}
    if request.place is Place.TOKENIZE:
        if whole.get("count") != len(whole.get("tokens") or ()) or not whole.get("count"):
            yield f"count {whole.get('count')} of {len(whole.get('tokens') or ())} tokens"
        if request.body.get("return_token_strs") and len(whole.get("token_strs") or ()) != len(
            whole["tokens"]
        ):
            yield "token_strs do not go with tokens"
    elif not isinstance(whole.get("prompt"), str):
        yield "no prompt in what was detokenized"


def expected_choices(request: SoakRequest) -> int:
    """n for each prompt."""
    prompt = request.body.get("prompt")
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return (len(prompt) if several and prompt else 1) * int(request.body.get("n", 1))


def _numbers(request: SoakRequest, answer: Answer) -> Iterator[str]:
    expected = expected_choices(request)
    if sorted(answer.choices) != list(range(expected)):
        yield f"choices {sorted(answer.choices)} where {expected} were asked for"
    figures = answer.speculation
    if figures is not None:
        drafted = figures["num_draft_tokens"]
        if figures["num_accepted_draft_tokens"] > drafted:
            yield f"more accepted than drafted: {dict(figures)}"
        if drafted and request.body.get("speculative_decoding") in (
            {"enabled": False},
            {"num_speculative_tokens": 0},
        ):
            yield f"{drafted} drafts where speculation was off"
    usage = answer.usage
    if usage is None:
        return
    if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        yield f"usage does not add up: {dict(usage)}"
    told = all(choice.ids is not None for choice in answer.choices.values())
    if (
        told
        and "stream_options" not in request.body
        and usage["completion_tokens"] != answer.tokens
    ):
        yield f"completion_tokens {usage['completion_tokens']} of {answer.tokens} ids"


def _choice(request: SoakRequest, choice: Choice) -> Iterator[str]:
    if choice.finish_reason not in ("stop", "length", "tool_calls"):
        yield f"finish_reason {choice.finish_reason!r}"
    if choice.ids is not None:
        yield from _ids(request, choice, choice.ids)
    yield from _stop_strings(request, choice)
    yield from _format(request, choice)
    if "prompt_logprobs" in request.body and choice.prompt_logprobs is None:
        yield "prompt_logprobs are missing"


def _ids(request: SoakRequest, choice: Choice, ids: list[int]) -> Iterator[str]:
    body = request.body
    most = body.get("max_completion_tokens") or body["max_tokens"]
    if len(ids) > most:
        yield f"{len(ids)} tokens where {most} were allowed"
    if choice.finish_reason == "length" and len(ids) < most:
        yield f"ended by length after {len(ids)} of {most} tokens"
    if choice.finish_reason == "stop" and len(ids) < body.get("min_tokens", 0):
        yield f"stopped after {len(ids)} of at least {body['min_tokens']} tokens"
    allowed = body.get("allowed_token_ids")
    if allowed and not set(ids) <= set(allowed):
        yield f"tokens {sorted(set(ids) - set(allowed))} are not allowed"
    if _wants_logprobs(request) and not body.get("echo") and (choice.logprobs or 0) != len(ids):
        yield f"log-probabilities of {choice.logprobs} tokens of {len(ids)}"


def _wants_logprobs(request: SoakRequest) -> bool:
    # 0 asks for the chosen token's own; true is the chat endpoint's.
    return request.body.get("logprobs") is not None and request.body["logprobs"] is not False


def _stop_strings(request: SoakRequest, choice: Choice) -> Iterator[str]:
    stops = request.body.get("stop")
    if not stops or request.body.get("echo"):
        return
    stops = [stops] if isinstance(stops, str) else stops
    found = [stop for stop in stops if stop in choice.text]
    included = request.body.get("include_stop_str_in_output")
    if isinstance(choice.stop_reason, str):
        if choice.stop_reason not in stops:
            yield f"stop_reason {choice.stop_reason!r} was not asked for"
        if included and not choice.text.endswith(choice.stop_reason):
            yield f"the text does not end with the stop string {choice.stop_reason!r}"
    # Among the first `min_tokens` nothing stops.
    passed_over = (included and choice.stop_reason in found) or request.body.get("min_tokens")
    if found and not passed_over:
        yield f"the text has the stop strings {found}"


def shows_end(request: SoakRequest) -> bool:
    """Whether the text ends with the end-of-sequence token's own."""
    body = request.body
    shown = body.get("skip_special_tokens") is False
    return shown and bool(body.get("include_stop_str_in_output"))


def _format(request: SoakRequest, choice: Choice) -> Iterator[str]:
    # Cut by a limit or by what the client itself named, a text need not be whole.
    whole = choice.finish_reason in ("stop", "tool_calls") and choice.stop_reason is None
    if shows_end(request):
        return
    if request.matches is not None and whole and not request.matches(choice.text):
        yield f"the text does not match what was asked for: {choice.text!r}"
    tool_choice = request.body.get("tool_choice")
    if "tools" not in request.body or tool_choice in ("auto", "none"):
        if choice.tool_names and tool_choice != "auto":
            yield f"tools {choice.tool_names} were called unasked"
        return
    if not whole:
        return
    if not choice.tool_names:
        yield f"no tool was called: {choice.text!r}"
    known = {one["function"]["name"] for one in request.body["tools"]}
    for index, name in choice.tool_names.items():
        arguments = choice.tool_arguments.get(index, "")
        if name not in known or not tool_arguments_match(arguments):
            yield f"tool {name!r} was called with {arguments!r}"
