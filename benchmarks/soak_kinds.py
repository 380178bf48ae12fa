"""What a request of a soak may ask for: one entry for each kind, with its weight.

Knows fields and their valid values, and which kinds contradict each other. A kind's weight is the
probability that a request it fits asks for it; those of one group exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import soak_fields as fields
from benchmarks.soak_draw import Draw, Place
from benchmarks.soak_texts import BAD_WORDS, FORMATS, PROMPTS, SALTS

COMPLETIONS = frozenset({Place.COMPLETIONS})
CHAT = frozenset({Place.CHAT})
HTTP = COMPLETIONS | CHAT
CHATS = frozenset({Place.CHAT, Place.GRPC_CHAT})
TEXTS = frozenset({Place.COMPLETIONS, Place.GRPC_TEXT})
GENERATIONS = CHATS | TEXTS

_NAMED = {"type": "function", "function": {"name": "tides"}}


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


def _structured_kinds() -> list[Kind]:
    kinds = [
        Kind(f"structured {name}", 0.045, GENERATIONS, partial(fields.structured, make), "format")
        for name, make in zip(
            ("json", "json_object", "regex", "choice", "grammar"), FORMATS, strict=True
        )
    ]
    kinds += [
        Kind("response_format json_schema", 0.05, HTTP, fields.response_schema, "format"),
        Kind("response_format json_object", 0.04, HTTP, fields.response_object, "format"),
    ]
    for name, choice, weight in (
        ("tools auto", "auto", 0.06),
        ("tools none", "none", 0.03),
        ("tools required", "required", 0.06),
        ("tools named", _NAMED, 0.06),
    ):
        kinds.append(Kind(name, weight, CHAT, partial(fields.tools, choice=choice), "format"))
    return kinds


# In this order, which `needs` and `excludes` rely on.
KINDS: tuple[Kind, ...] = (
    *_structured_kinds(),
    Kind("long answer", 0.1, GENERATIONS, fields.long_answer, excludes=frozenset({"format"})),
    Kind("long prompt", 0.04, GENERATIONS, fields.long_prompt, "prompt"),
    Kind("long token ids", 0.04, TEXTS, fields.long_ids, "prompt"),
    Kind(
        "token ids",
        0.2,
        TEXTS,
        fields.put("prompt", lambda draw: draw.token_ids(draw.rng.randint(1, 80))),
        "prompt",
    ),
    Kind(
        "several prompts",
        0.1,
        COMPLETIONS,
        fields.put("prompt", lambda draw: draw.rng.sample(PROMPTS, draw.rng.randint(2, 3))),
        "prompt",
    ),
    Kind("several lists of ids", 0.05, COMPLETIONS, fields.several_ids, "prompt"),
    Kind("system message", 0.2, CHATS, fields.system, "prompt"),
    Kind(
        "continued message", 0.1, CHATS, fields.continued, "prompt", excludes=frozenset({"format"})
    ),
    Kind("truncate right", 0.04, HTTP, partial(fields.truncated, side="right"), "truncation"),
    Kind("truncate to fit", 0.04, GENERATIONS, partial(fields.truncated, to=-1), "truncation"),
    Kind("truncate", 0.06, GENERATIONS, fields.truncated, "truncation"),
    Kind("no special tokens", 0.1, TEXTS, fields.put("add_special_tokens", fields.always(False))),
    Kind(
        "special tokens shown",
        0.2,
        GENERATIONS,
        fields.put("skip_special_tokens", fields.always(False)),
    ),
    Kind("greedy", 0.3, GENERATIONS, fields.put("temperature", fields.always(0)), "temperature"),
    Kind(
        "temperature",
        0.75,
        GENERATIONS,
        fields.put("temperature", fields.uniform(0.1, 2)),
        "temperature",
    ),
    Kind("seed", 0.8, GENERATIONS, fields.seed),
    Kind(
        "top_k", 0.25, GENERATIONS, fields.put("top_k", lambda d: d.rng.choice((-1, 0, 1, 5, 50)))
    ),
    Kind("top_p", 0.25, GENERATIONS, fields.put("top_p", fields.uniform(0.05, 1))),
    Kind("min_p", 0.2, GENERATIONS, fields.put("min_p", fields.uniform(0, 0.5))),
    Kind(
        "presence_penalty", 0.15, GENERATIONS, fields.put("presence_penalty", fields.uniform(-2, 2))
    ),
    Kind(
        "frequency_penalty",
        0.15,
        GENERATIONS,
        fields.put("frequency_penalty", fields.uniform(-2, 2)),
    ),
    Kind(
        "repetition_penalty",
        0.15,
        GENERATIONS,
        fields.put("repetition_penalty", fields.uniform(0.5, 2)),
    ),
    Kind("logit_bias", 0.15, GENERATIONS, fields.logit_bias),
    Kind(
        "bad_words",
        0.12,
        GENERATIONS,
        fields.put("bad_words", lambda d: d.rng.sample(BAD_WORDS, 2)),
    ),
    Kind(
        "allowed_token_ids",
        0.08,
        GENERATIONS,
        fields.put("allowed_token_ids", fields.allowed_ids),
        excludes=frozenset({"format"}),
    ),
    Kind(
        "min_tokens",
        0.15,
        GENERATIONS,
        fields.put("min_tokens", lambda draw: draw.rng.randint(0, draw.max_tokens)),
        excludes=frozenset({"format"}),
    ),
    Kind("stop", 0.2, GENERATIONS, partial(fields.stops, include=False), "stop"),
    Kind("stop included", 0.12, GENERATIONS, partial(fields.stops, include=True), "stop"),
    Kind("stop_token_ids", 0.15, GENERATIONS, fields.put("stop_token_ids", fields.stop_ids)),
    Kind("ignore_eos", 0.3, GENERATIONS, fields.put("ignore_eos", fields.always(True))),
    Kind("n", 0.12, HTTP, fields.choices),
    Kind("prompt_logprobs", 0.08, GENERATIONS, fields.put("prompt_logprobs", fields.integer(0, 5))),
    Kind("logprobs", 0.25, GENERATIONS, fields.logprobs),
    Kind(
        "logprobs of token ids",
        0.3,
        HTTP,
        fields.put("return_tokens_as_token_ids", fields.always(True)),
        needs=("logprobs",),
    ),
    Kind(
        "echo",
        0.12,
        COMPLETIONS,
        fields.put("echo", fields.always(True)),
        excludes=frozenset({"format", "truncation"}),
    ),
    Kind("token ids returned", 0.8, HTTP, fields.put("return_token_ids", fields.always(True))),
    Kind(
        "stream with usage",
        0.15,
        HTTP,
        partial(fields.streamed, include_usage=True),
        "stream",
        excludes=frozenset({"prompt_logprobs"}),
    ),
    Kind(
        "stream with running usage",
        0.1,
        HTTP,
        partial(fields.streamed, include_usage=True, continuous_usage_stats=True),
        "stream",
        excludes=frozenset({"prompt_logprobs"}),
    ),
    Kind("stream", 0.4, HTTP, fields.streamed, "stream", excludes=frozenset({"prompt_logprobs"})),
    Kind("priority", 0.3, GENERATIONS, fields.put("priority", fields.integer(-3, 3))),
    Kind("cache_salt", 0.4, GENERATIONS, fields.put("cache_salt", lambda d: d.rng.choice(SALTS))),
    Kind(
        "request_id",
        0.1,
        GENERATIONS,
        fields.put("request_id", lambda draw: f"soak-{draw.rng.getrandbits(64):x}"),
    ),
    Kind("user", 0.1, HTTP, fields.put("user", fields.always("soak"))),
    Kind(
        "speculation off",
        0.08,
        GENERATIONS,
        fields.put("speculative_decoding", fields.always({"enabled": False})),
        "speculation",
    ),
    Kind("one proposer", 0.15, GENERATIONS, partial(fields.speculation, named=True), "speculation"),
    Kind("own K", 0.15, GENERATIONS, partial(fields.speculation, k=True), "speculation"),
    Kind(
        "one proposer with own K",
        0.1,
        GENERATIONS,
        partial(fields.speculation, named=True, k=True),
        "speculation",
    ),
    Kind(
        "token strings",
        0.5,
        frozenset({Place.TOKENIZE}),
        fields.put("return_token_strs", fields.always(True)),
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
