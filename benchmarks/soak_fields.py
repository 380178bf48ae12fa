"""How the values of a request's fields are drawn, for the kinds of soak_kinds.py.

Knows each field's valid values; does not know how often it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.soak_draw import Draw, Place, messages
from benchmarks.soak_texts import (
    REPLIES,
    STOPS,
    SYSTEM,
    Format,
    json_object,
    json_schema,
    long_text,
    tool,
)


def put(field: str, choose: Callable[[Draw], Any]) -> Callable[[Draw], None]:
    def add(draw: Draw) -> None:
        draw.body[field] = choose(draw)

    return add


def uniform(low: float, high: float) -> Callable[[Draw], float]:
    return lambda draw: round(draw.rng.uniform(low, high), 3)


def integer(low: int, high: int) -> Callable[[Draw], int]:
    return lambda draw: draw.rng.randint(low, high)


def always(value: Any) -> Callable[[Draw], Any]:
    return lambda draw: value


def long_prompt(draw: Draw) -> None:
    text = long_text(draw.rng, draw.rng.randint(draw.room // 2, draw.room))
    if draw.place.is_chat:
        draw.body["messages"] = [{"role": "user", "content": text}]
    else:
        draw.body["prompt"] = text


def long_ids(draw: Draw) -> None:
    draw.body["prompt"] = draw.token_ids(draw.rng.randint(draw.room // 2, draw.room))


def several_ids(draw: Draw) -> None:
    draw.body["prompt"] = [draw.token_ids(draw.rng.randint(1, 30)) for _ in range(2)]


def system(draw: Draw) -> None:
    draw.body["messages"] = [
        {"role": "system", "content": SYSTEM},
        *messages(draw.rng),
    ]


def continued(draw: Draw) -> None:
    draw.body["messages"] = [
        *messages(draw.rng),
        {"role": "assistant", "content": draw.rng.choice(REPLIES)},
    ]
    draw.body["continue_final_message"] = True
    draw.body["add_generation_prompt"] = False


def streamed(draw: Draw, **options: bool) -> None:
    draw.body["stream"] = True
    if options:
        draw.body["stream_options"] = options


def seed(draw: Draw) -> None:
    # Small ones, so that another request's seed is met again, and ones at the ends.
    draw.body["seed"] = draw.rng.choice([draw.rng.randint(0, 50), -1, 2**63 - 1, -(2**63)])


def choices(draw: Draw) -> None:
    draw.body["n"] = draw.rng.randint(2, 3)
    if not draw.body.get("temperature"):
        # Refused at temperature 0, which may also be the model's default.
        draw.body["temperature"] = 0.8


def logit_bias(draw: Draw) -> None:
    ids = {draw.rng.randrange(draw.facts.vocab_size) for _ in range(draw.rng.randint(1, 8))}
    draw.body["logit_bias"] = {str(i): draw.rng.choice((-100, -5.5, 1, 4.25)) for i in sorted(ids)}


def allowed_ids(draw: Draw) -> list[int]:
    vocab_size = draw.facts.vocab_size
    return sorted({draw.rng.randrange(vocab_size) for _ in range(draw.rng.randint(2, 60))})


def stops(draw: Draw, *, include: bool) -> None:
    stops = draw.rng.sample(STOPS, draw.rng.randint(1, 3))
    draw.body["stop"] = stops if draw.rng.random() < 0.7 else stops[0]
    if include:
        draw.body["include_stop_str_in_output"] = True


def stop_ids(draw: Draw) -> list[int]:
    return [draw.rng.randrange(draw.facts.vocab_size) for _ in range(draw.rng.randint(1, 6))]


def logprobs(draw: Draw) -> None:
    count = draw.rng.randint(0, 5)
    if draw.place is Place.CHAT:
        draw.body |= {"logprobs": True, "top_logprobs": count}
    else:
        draw.body["logprobs"] = count


def truncated(draw: Draw, *, side: str = "", to: int | None = None) -> None:
    draw.body["truncate_prompt_tokens"] = draw.rng.randint(1, 60) if to is None else to
    if side:
        draw.body["truncation_side"] = side


def speculation(draw: Draw, *, named: bool = False, k: bool = False) -> None:
    chosen: dict[str, Any] = {}
    if named:
        chosen["proposer"] = draw.rng.choice(draw.facts.proposers)
    if k:
        chosen["num_speculative_tokens"] = draw.rng.randint(0, draw.facts.num_speculative_tokens)
    draw.body["speculative_decoding"] = chosen


def formatted(draw: Draw, form: Format) -> None:
    draw.matches = form.matches
    longer(draw)


def structured(make: Callable[..., Format], draw: Draw) -> None:
    form = make(draw.rng)
    draw.body["structured_outputs"] = {form.field: form.value}
    formatted(draw, form)


def response_schema(draw: Draw) -> None:
    form = json_schema(draw.rng)
    draw.body["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": form.value, "strict": True},
    }
    formatted(draw, form)


def response_object(draw: Draw) -> None:
    draw.body["response_format"] = {"type": "json_object"}
    formatted(draw, json_object(draw.rng))


def tools(draw: Draw, *, choice: Any) -> None:
    draw.body["tools"] = [tool("tides"), tool("berths")]
    draw.body["tool_choice"] = choice
    longer(draw)


def longer(draw: Draw) -> None:
    """Formats need room to end."""
    _end_after(draw, draw.rng.choice((16, 64, 96)))


def long_answer(draw: Draw) -> None:
    """Texts that repeat themselves, and caches that fill."""
    _end_after(draw, draw.rng.randint(100, 300))
    draw.body["ignore_eos"] = True


def _end_after(draw: Draw, max_tokens: int) -> None:
    draw.max_tokens = max_tokens
    for field in ("max_tokens", "max_completion_tokens"):
        if field in draw.body:
            draw.body[field] = draw.max_tokens
