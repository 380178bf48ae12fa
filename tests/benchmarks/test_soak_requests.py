"""The requests of a soak: the same for the same seed, valid as both edges see them, and varied."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.soak_draw import MIN_MODEL_LEN, Facts, Place, SoakRequest, begin
from benchmarks.soak_grpc import generate_request
from benchmarks.soak_kinds import BY_NAME, KINDS
from benchmarks.soak_refusals import REFUSALS
from benchmarks.soak_requests import RequestFactory, probe
from benchmarks.soak_texts import FORMATS, tool_arguments_match
from gateway.errors import ApiError
from gateway.requests import parse_chat, parse_completion, parse_tokenize
from verifier_service.request_error import RequestError
from verifier_service.target_facts import SamplingDefaults
from verifier_service.validation import Limits, parameters

FACTS = Facts("toy", 322, MIN_MODEL_LEN, 8, ("ngram", "suffix"))
LIMITS = Limits(
    served_model_name="toy",
    vocab_size=322,
    max_model_len=MIN_MODEL_LEN,
    eos_token_ids=(1,),
    num_speculative_tokens=8,
    defaults=SamplingDefaults(),
)
MANY = 4000


@pytest.fixture(scope="module")
def requests() -> list[SoakRequest]:
    factory = RequestFactory(1, FACTS)
    return [factory.request(number) for number in range(MANY)]


def http_error(place: Place, body: dict[str, Any]) -> ApiError | None:
    parse = {
        Place.COMPLETIONS: parse_completion,
        Place.CHAT: parse_chat,
        Place.TOKENIZE: parse_tokenize,
    }[place]
    try:
        parse(body)
    except ApiError as error:
        return error
    return None


def grpc_error(request: SoakRequest) -> RequestError | None:
    try:
        parameters(generate_request(request), LIMITS, FACTS.proposers)
    except RequestError as error:
        return error
    return None


def test_a_request_is_known_from_seed_and_number_alone(requests: list[SoakRequest]) -> None:
    again = RequestFactory(1, FACTS)
    for number in (7, MANY - 1, 0):
        assert again.request(number).to_json() == requests[number].to_json()
    other = RequestFactory(2, FACTS)
    assert [other.request(n).to_json() for n in range(20)] != [
        one.to_json() for one in requests[:20]
    ]


def test_valid_requests_are_valid_at_the_gateway(requests: list[SoakRequest]) -> None:
    for request in requests:
        if request.refused is None and request.place in (
            Place.COMPLETIONS,
            Place.CHAT,
            Place.TOKENIZE,
        ):
            error = http_error(request.place, dict(request.body))
            assert error is None, (error, request.to_json())


def test_valid_requests_are_valid_at_the_verifier(requests: list[SoakRequest]) -> None:
    checked = 0
    for request in requests:
        if request.refused is None and request.place.is_grpc:
            checked += 1
            error = grpc_error(request)
            assert error is None, (error, request.to_json())
    assert checked > MANY / 10


def test_prompts_fit_the_context_at_one_token_a_byte(requests: list[SoakRequest]) -> None:
    for request in requests:
        if request.refused is not None or not request.place.generates:
            continue
        body = request.body
        most = body.get("max_completion_tokens") or body["max_tokens"]
        prompts = body.get("prompt", "")
        several = isinstance(prompts, list) and not isinstance(prompts[0], int)
        for prompt in prompts if several else [prompts]:
            size = len(prompt.encode()) if isinstance(prompt, str) else len(prompt)
            assert size + most <= FACTS.max_model_len
        said = "".join(str(message) for message in body.get("messages", ()))
        # Half of it is left to the template and to tools.
        assert len(said.encode()) / 2 + most <= FACTS.max_model_len


def test_every_kind_comes_at_every_place_and_every_refusal(requests: list[SoakRequest]) -> None:
    seen = {(name, request.place) for request in requests for name in request.kinds}
    expected = {(kind.name, place) for kind in KINDS for place in kind.places}
    assert not expected - seen
    names = {name for name, _ in seen}
    assert not {f"refused: {bad.name}" for bad in REFUSALS} - names


def test_kinds_that_contradict_each_other_never_meet(requests: list[SoakRequest]) -> None:
    for request in requests:
        kinds = [BY_NAME[name] for name in request.kinds if name in BY_NAME]
        groups = [kind.group for kind in kinds if kind.group]
        assert len(groups) == len(set(groups))
        names = {kind.name for kind in kinds} | set(groups)
        assert not any(kind.excludes & (names - {kind.name, kind.group}) for kind in kinds)
        if request.body.get("n", 1) > 1 and request.refused is None:
            assert request.body["temperature"] > 0


def test_what_is_not_offered_is_left_out() -> None:
    missing = [("min_p", place) for place in Place]
    factory = RequestFactory(1, FACTS, missing)
    bodies = [one.body for one in map(factory.request, range(500)) if one.refused is None]
    assert not any("min_p" in body for body in bodies)
    assert any("top_p" in body for body in bodies)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_probe_asks_for_one_kind(kind: str) -> None:
    for place in BY_NAME[kind].places:
        request = probe(kind, place, FACTS)
        assert request.kinds == (*BY_NAME[kind].needs, kind)
        assert request.refused is None and request.cancel_after is None
        assert request.to_json() == probe(kind, place, FACTS).to_json()


def test_some_clients_leave_and_some_ask_for_what_is_refused(requests: list[SoakRequest]) -> None:
    leaving = sum(request.cancel_after is not None for request in requests)
    refused = sum(request.refused is not None for request in requests)
    assert 0.05 * MANY < leaving < 0.2 * MANY
    assert 0.05 * MANY < refused < 0.12 * MANY


@pytest.mark.parametrize("bad", REFUSALS, ids=lambda bad: bad.name)
def test_no_spoiled_request_is_taken_by_what_can_see_it_early(bad: Any) -> None:
    """What the edges let pass is for the model or the compiler to refuse; names must agree."""
    for place in bad.places:
        draw = begin(random.Random(1), FACTS, place)
        bad.spoil(draw)
        request = SoakRequest(0, place, draw.body, (), refused=bad.param_at(place))
        if place.is_grpc:
            refusal = grpc_error(request)
            assert refusal is None or refusal.field == request.refused
        elif place is not Place.DETOKENIZE:
            error = http_error(place, draw.body)
            assert error is None or (error.status, error.param) == (400, request.refused)


def test_a_context_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len 512"):
        Facts("toy", 322, 512, 8, ("ngram",))
    with pytest.raises(ValueError, match="proposers"):
        Facts("toy", 322, 2048, 8, ())


def test_formats_know_what_matches_them() -> None:
    rng = random.Random(1)
    right = {"json_object": "{}", "grammar": "12 + 3"}
    for make in FORMATS:
        form = make(rng)
        text = right.get(form.field)
        if form.field == "json":
            own = next(name for name in form.value["properties"] if name != "side")
            text = f'{{"{own}": 7, "side": "left"}}'
            assert not form.matches(f'{{"{own}": 700, "side": "left"}}')
        elif form.field == "regex":
            digits = int(form.value[form.value.index("{") + 1])
            text = f"{'A' * digits}-{'0' * digits}"
        elif form.field == "choice":
            text = form.value[1]
        assert text is not None and form.matches(text)
        assert not form.matches(f"{text} ,") and not form.matches("")
    assert tool_arguments_match('{"harbor": "bari"}')
    assert not tool_arguments_match('{"harbor": "oslo"}')


def test_a_field_without_a_place_in_the_message_is_not_lost_silently() -> None:
    request = SoakRequest(0, Place.GRPC_TEXT, {"prompt": "x", "best_of": 2}, ())
    with pytest.raises(ValueError, match="best_of"):
        generate_request(request)
