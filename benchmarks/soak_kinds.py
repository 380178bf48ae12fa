"""What a request of a soak may ask for: one entry for each kind, with its weight.

Knows fields and their valid values, and which kinds contradict each other. A kind's weight is the
probability that a request it fits asks for it; those of one group exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.soak_draw import Draw, Place, messages
from benchmarks.soak_texts import (
    BAD_WORDS,
    FORMATS,
    PROMPTS,
    REPLIES,
    SALTS,
    STOPS,
    SYSTEM,
    Format,
    json_object,
    json_schema,
    long_text,
    tool,
)

COMPLETIONS = frozenset({Place.COMPLETIONS})
CHAT = frozenset({Place.CHAT})
HTTP = COMPLETIONS | CHAT
CHATS = frozenset({Place.CHAT, Place.GRPC_CHAT})
TEXTS = frozenset({Place.COMPLETIONS, Place.GRPC_TEXT})
GENERATIONS = CHATS | TEXTS


@dataclass(frozen=True, slots=True)
class Kind:
    """`needs` are kinds that must be there already, `excludes` ones that must not."""

    name: str
    weight: float
    places: frozenset[Place]
    add: Callable[[Draw], None]
    group: str = ""
    needs: tuple[str, ...] = ()
    excludes: frozenset[str] = frozenset()

    def fits(self, draw: Draw) -> bool:
        """Whether the request so far may also ask for this."""
        groups = {BY_NAME[name].group for name in draw.kinds} - {""}
        return (
            draw.place in self.places
            and self.group not in groups
            and not self.excludes & {*draw.kinds, *groups}
            and all(name in draw.kinds for name in self.needs)
        )

    def put_into(self, draw: Draw) -> None:
        self.add(draw)
        draw.kinds.append(self.name)


def _set(field: str, choose: Callable[[Draw], Any]) -> Callable[[Draw], None]:
    def add(draw: Draw) -> None:
        draw.body[field] = choose(draw)

    return add


def _uniform(low: float, high: float) -> Callable[[Draw], float]:
    return lambda draw: round(draw.rng.uniform(low, high), 3)


def _integer(low: int, high: int) -> Callable[[Draw], int]:
    return lambda draw: draw.rng.randint(low, high)


def _always(value: Any) -> Callable[[Draw], Any]:
    return lambda draw: value


def _long_prompt(draw: Draw) -> None:
    text = long_text(draw.rng, draw.rng.randint(draw.room // 2, draw.room))
    if draw.place.is_chat:
        draw.body["messages"] = [{"role": "user", "content": text}]
    else:
        draw.body["prompt"] = text


def _long_ids(draw: Draw) -> None:
    draw.body["prompt"] = draw.token_ids(draw.rng.randint(draw.room // 2, draw.room))


def _several_ids(draw: Draw) -> None:
    draw.body["prompt"] = [draw.token_ids(draw.rng.randint(1, 30)) for _ in range(2)]


def _system(draw: Draw) -> None:
    draw.body["messages"] = [
        {"role": "system", "content": SYSTEM},
        *messages(draw.rng),
    ]


def _continued(draw: Draw) -> None:
    draw.body["messages"] = [
        *messages(draw.rng),
        {"role": "assistant", "content": draw.rng.choice(REPLIES)},
    ]
    draw.body["continue_final_message"] = True
    draw.body["add_generation_prompt"] = False


def _streamed(draw: Draw, **options: bool) -> None:
    draw.body["stream"] = True
    if options:
        draw.body["stream_options"] = options


def _seed(draw: Draw) -> None:
    # Small ones, so that another request's seed is met again, and ones at the ends.
    draw.body["seed"] = draw.rng.choice([draw.rng.randint(0, 50), -1, 2**63 - 1, -(2**63)])


def _choices(draw: Draw) -> None:
    draw.body["n"] = draw.rng.randint(2, 3)
    if not draw.body.get("temperature"):
        # Refused at temperature 0, which may also be the model's default.
        draw.body["temperature"] = 0.8


def _logit_bias(draw: Draw) -> None:
    ids = {draw.rng.randrange(draw.facts.vocab_size) for _ in range(draw.rng.randint(1, 8))}
    draw.body["logit_bias"] = {str(i): draw.rng.choice((-100, -5.5, 1, 4.25)) for i in sorted(ids)}


def _allowed_ids(draw: Draw) -> list[int]:
    vocab_size = draw.facts.vocab_size
    return sorted({draw.rng.randrange(vocab_size) for _ in range(draw.rng.randint(2, 60))})


def _stops(draw: Draw, *, include: bool) -> None:
    stops = draw.rng.sample(STOPS, draw.rng.randint(1, 3))
    draw.body["stop"] = stops if draw.rng.random() < 0.7 else stops[0]
    if include:
        draw.body["include_stop_str_in_output"] = True


def _stop_ids(draw: Draw) -> list[int]:
    return [draw.rng.randrange(draw.facts.vocab_size) for _ in range(draw.rng.randint(1, 6))]


def _logprobs(draw: Draw) -> None:
    count = draw.rng.randint(0, 5)
    if draw.place is Place.CHAT:
        draw.body |= {"logprobs": True, "top_logprobs": count}
    else:
        draw.body["logprobs"] = count


def _truncated(draw: Draw, *, side: str = "", to: int | None = None) -> None:
    draw.body["truncate_prompt_tokens"] = draw.rng.randint(1, 60) if to is None else to
    if side:
        draw.body["truncation_side"] = side


def _speculation(draw: Draw, *, named: bool = False, k: bool = False) -> None:
    chosen: dict[str, Any] = {}
    if named:
        chosen["proposer"] = draw.rng.choice(draw.facts.proposers)
    if k:
        chosen["num_speculative_tokens"] = draw.rng.randint(0, draw.facts.num_speculative_tokens)
    draw.body["speculative_decoding"] = chosen


def _formatted(draw: Draw, form: Format) -> None:
    draw.matches = form.matches
    _longer(draw)


def _structured(make: Callable[..., Format], draw: Draw) -> None:
    form = make(draw.rng)
    draw.body["structured_outputs"] = {form.field: form.value}
    _formatted(draw, form)


def _response_schema(draw: Draw) -> None:
    form = json_schema(draw.rng)
    draw.body["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": form.value, "strict": True},
    }
    _formatted(draw, form)


def _response_object(draw: Draw) -> None:
    draw.body["response_format"] = {"type": "json_object"}
    _formatted(draw, json_object(draw.rng))


def _tools(draw: Draw, *, choice: Any) -> None:
    draw.body["tools"] = [tool("tides"), tool("berths")]
    draw.body["tool_choice"] = choice
    _longer(draw)


def _longer(draw: Draw) -> None:
    """Formats need room to end."""
    draw.max_tokens = draw.rng.choice((16, 64, 96))
    for field in ("max_tokens", "max_completion_tokens"):
        if field in draw.body:
            draw.body[field] = draw.max_tokens


_NAMED = {"type": "function", "function": {"name": "tides"}}


def _structured_kinds() -> list[Kind]:
    kinds = [
        Kind(f"structured {name}", 0.045, GENERATIONS, partial(_structured, make), "format")
        for name, make in zip(
            ("json", "json_object", "regex", "choice", "grammar"), FORMATS, strict=True
        )
    ]
    kinds += [
        Kind("response_format json_schema", 0.05, HTTP, _response_schema, "format"),
        Kind("response_format json_object", 0.04, HTTP, _response_object, "format"),
    ]
    for name, choice, weight in (
        ("tools auto", "auto", 0.06),
        ("tools none", "none", 0.03),
        ("tools required", "required", 0.06),
        ("tools named", _NAMED, 0.06),
    ):
        kinds.append(Kind(name, weight, CHAT, partial(_tools, choice=choice), "format"))
    return kinds


# In this order, which `needs` and `excludes` rely on.
KINDS: tuple[Kind, ...] = (
    *_structured_kinds(),
    Kind("long prompt", 0.04, GENERATIONS, _long_prompt, "prompt"),
    Kind("long token ids", 0.04, TEXTS, _long_ids, "prompt"),
    Kind(
        "token ids",
        0.2,
        TEXTS,
        _set("prompt", lambda draw: draw.token_ids(draw.rng.randint(1, 80))),
        "prompt",
    ),
    Kind(
        "several prompts",
        0.1,
        COMPLETIONS,
        _set("prompt", lambda draw: draw.rng.sample(PROMPTS, draw.rng.randint(2, 3))),
        "prompt",
    ),
    Kind("several lists of ids", 0.05, COMPLETIONS, _several_ids, "prompt"),
    Kind("system message", 0.2, CHATS, _system, "prompt"),
    Kind("continued message", 0.1, CHATS, _continued, "prompt", excludes=frozenset({"format"})),
    Kind("truncate right", 0.04, HTTP, partial(_truncated, side="right"), "truncation"),
    Kind("truncate to fit", 0.04, GENERATIONS, partial(_truncated, to=-1), "truncation"),
    Kind("truncate", 0.06, GENERATIONS, _truncated, "truncation"),
    Kind("no special tokens", 0.1, TEXTS, _set("add_special_tokens", _always(False))),
    Kind("special tokens shown", 0.2, GENERATIONS, _set("skip_special_tokens", _always(False))),
    Kind("greedy", 0.3, GENERATIONS, _set("temperature", _always(0)), "temperature"),
    Kind("temperature", 0.75, GENERATIONS, _set("temperature", _uniform(0.1, 2)), "temperature"),
    Kind("seed", 0.8, GENERATIONS, _seed),
    Kind("top_k", 0.25, GENERATIONS, _set("top_k", lambda d: d.rng.choice((-1, 0, 1, 5, 50)))),
    Kind("top_p", 0.25, GENERATIONS, _set("top_p", _uniform(0.05, 1))),
    Kind("min_p", 0.2, GENERATIONS, _set("min_p", _uniform(0, 0.5))),
    Kind("presence_penalty", 0.15, GENERATIONS, _set("presence_penalty", _uniform(-2, 2))),
    Kind("frequency_penalty", 0.15, GENERATIONS, _set("frequency_penalty", _uniform(-2, 2))),
    Kind("repetition_penalty", 0.15, GENERATIONS, _set("repetition_penalty", _uniform(0.5, 2))),
    Kind("logit_bias", 0.15, GENERATIONS, _logit_bias),
    Kind("bad_words", 0.12, GENERATIONS, _set("bad_words", lambda d: d.rng.sample(BAD_WORDS, 2))),
    Kind(
        "allowed_token_ids",
        0.08,
        GENERATIONS,
        _set("allowed_token_ids", _allowed_ids),
        excludes=frozenset({"format"}),
    ),
    Kind(
        "min_tokens",
        0.15,
        GENERATIONS,
        _set("min_tokens", lambda draw: draw.rng.randint(0, draw.max_tokens)),
        excludes=frozenset({"format"}),
    ),
    Kind("stop", 0.2, GENERATIONS, partial(_stops, include=False), "stop"),
    Kind("stop included", 0.12, GENERATIONS, partial(_stops, include=True), "stop"),
    Kind("stop_token_ids", 0.15, GENERATIONS, _set("stop_token_ids", _stop_ids)),
    Kind("ignore_eos", 0.3, GENERATIONS, _set("ignore_eos", _always(True))),
    Kind("n", 0.12, HTTP, _choices),
    Kind("prompt_logprobs", 0.08, GENERATIONS, _set("prompt_logprobs", _integer(0, 5))),
    Kind("logprobs", 0.25, GENERATIONS, _logprobs),
    Kind(
        "logprobs of token ids",
        0.3,
        HTTP,
        _set("return_tokens_as_token_ids", _always(True)),
        needs=("logprobs",),
    ),
    Kind(
        "echo",
        0.12,
        COMPLETIONS,
        _set("echo", _always(True)),
        excludes=frozenset({"format", "truncation"}),
    ),
    Kind("token ids returned", 0.8, HTTP, _set("return_token_ids", _always(True))),
    Kind(
        "stream with usage",
        0.15,
        HTTP,
        partial(_streamed, include_usage=True),
        "stream",
        excludes=frozenset({"prompt_logprobs"}),
    ),
    Kind(
        "stream with running usage",
        0.1,
        HTTP,
        partial(_streamed, include_usage=True, continuous_usage_stats=True),
        "stream",
        excludes=frozenset({"prompt_logprobs"}),
    ),
    Kind("stream", 0.4, HTTP, _streamed, "stream", excludes=frozenset({"prompt_logprobs"})),
    Kind("priority", 0.3, GENERATIONS, _set("priority", _integer(-3, 3))),
    Kind("cache_salt", 0.4, GENERATIONS, _set("cache_salt", lambda d: d.rng.choice(SALTS))),
    Kind(
        "request_id",
        0.1,
        GENERATIONS,
        _set("request_id", lambda draw: f"soak-{draw.rng.getrandbits(64):x}"),
    ),
    Kind("user", 0.1, HTTP, _set("user", _always("soak"))),
    Kind(
        "speculation off",
        0.08,
        GENERATIONS,
        _set("speculative_decoding", _always({"enabled": False})),
        "speculation",
    ),
    Kind("one proposer", 0.15, GENERATIONS, partial(_speculation, named=True), "speculation"),
    Kind("own K", 0.15, GENERATIONS, partial(_speculation, k=True), "speculation"),
    Kind(
        "one proposer with own K",
        0.1,
        GENERATIONS,
        partial(_speculation, named=True, k=True),
        "speculation",
    ),
    Kind(
        "token strings",
        0.5,
        frozenset({Place.TOKENIZE}),
        _set("return_token_strs", _always(True)),
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
