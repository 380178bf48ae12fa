"""`SamplingParams`: how an answer is sampled, under vLLM's names and with its defaults.

Knows each field's type and range; what depends on the model (vocabulary, context) is checked when a
request is made of it. Light: imports no torch and no service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from outrider.config import nearest, shorten

if TYPE_CHECKING:
    from speculation.v1.verifier_pb2 import StructuredOutput

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_TokenId = Annotated[int, Field(ge=0, le=_INT32_MAX)]
_Penalty = Annotated[float, Field(ge=-2, le=2, description="a number from -2 to 2")]
_Flag = Annotated[bool, Field(description="True or False")]
_Logprobs = Annotated[
    int | None,
    Field(
        ge=-1,
        le=_INT32_MAX,
        description="None, how many top tokens to tell at each position, or -1 for all",
    ),
]

# vLLM's fields that ask for what Outrider does not have: the values that ask for nothing, and why.
_REFUSED: Final[dict[str, tuple[tuple[object, ...], str]]] = {
    "best_of": ((None, 1), "answers are not ranked; send n"),
    "logits_processors": ((None, []), "no code of the caller's runs between model and sampling"),
    "logprob_token_ids": ((None, []), "send logprobs, which tells the most likely tokens"),
    "repetition_detection": ((None,), "send a penalty"),
    "thinking_token_budget": ((None,), "reasoning is not told apart from the answer"),
    "guided_decoding": ((None,), "send structured_outputs"),
    "extra_args": ((None, {}), "there is nobody to read them"),
    "flat_logprobs": ((None, False), "log-probabilities are lists of dicts"),
}


@dataclass(kw_only=True, slots=True)
class StructuredOutputsParams:
    """What an answer's text must match: exactly one of the first six.

    Whether a schema, expression or grammar can be used is found out when a request is made of it.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class SamplingParams(BaseModel):
    """How one prompt is answered. Fields and defaults are vLLM's; all are keywords.

    `n` answers get the seeds `seed`, `seed` + 1, …; without a `seed` one is drawn from the `LLM`'s
    own. `max_tokens` None goes to the end of the context. `stop_token_ids` come beside the model's
    end-of-sequence ids, which `ignore_eos` makes ordinary tokens. `logprobs` are of the target's
    own distribution, before temperature and masks. `spaces_between_special_tokens` changes nothing:
    fast tokenizers write no such spaces.

    Raises ValueError naming the field, its value and what is allowed.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    n: int = Field(1, ge=1, le=16384, description="an integer from 1 to 16384")
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: float = Field(1.0, gt=0, le=3.4e38, description="a number above 0")
    temperature: float = Field(1.0, ge=0, le=2, description="a number from 0 to 2")
    top_p: float = Field(1.0, gt=0, le=1, description="a number above 0, at most 1")
    top_k: int = Field(
        0, ge=-1, le=_INT32_MAX, description="an integer: 1 and above, or 0 or -1 for no limit"
    )
    min_p: float = Field(0.0, ge=0, le=1, description="a number from 0 to 1")
    seed: int | None = Field(
        None, ge=-_INT64_MAX - 1, le=_INT64_MAX, description="None or a signed 64-bit integer"
    )
    stop: str | list[str] | None = Field(
        None, description="a string or a list of strings of at least one character"
    )
    stop_token_ids: list[_TokenId] | None = Field(None, description="a list of token ids")
    ignore_eos: _Flag = False
    max_tokens: int | None = Field(
        16, ge=1, le=_INT32_MAX, description="None or an integer of 1 and above"
    )
    min_tokens: int = Field(0, ge=0, le=_INT32_MAX, description="an integer from 0 to max_tokens")
    logprobs: _Logprobs = None
    prompt_logprobs: _Logprobs = None
    detokenize: _Flag = True
    skip_special_tokens: _Flag = True
    spaces_between_special_tokens: _Flag = True
    include_stop_str_in_output: _Flag = False
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        le=_INT32_MAX,
        description="None, how many of the prompt's last tokens to keep, or -1 for as many as fit",
    )
    structured_outputs: StructuredOutputsParams | dict[str, Any] | None = Field(
        None, description="None, a StructuredOutputsParams or a dict of its fields"
    )
    logit_bias: dict[int, float] | None = Field(
        None, description="a dict of token ids and numbers from -100 to 100"
    )
    allowed_token_ids: list[_TokenId] | None = Field(
        None, min_length=1, description="a list of at least one token id"
    )
    bad_words: list[str] | None = Field(None, description="a list of strings")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_in_one_line(error)) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only what differs from the defaults."""
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if value != info.default:
                yield name, value

    @classmethod
    def from_optional(cls, **values: Any) -> Self:
        """As the constructor, but None counts as left out, except for `max_tokens`."""
        return cls(**{k: v for k, v in values.items() if v is not None or k == "max_tokens"})

    def clone(self) -> Self:
        """A deep copy."""
        return self.model_copy(deep=True)

    @property
    def structure(self) -> StructuredOutput | None:
        """`structured_outputs` as the verifier is told. Raises ValueError."""
        asked = self.structured_outputs
        if asked is None:
            return None
        from pydantic_core import PydanticCustomError

        from gateway.structured import check_structured_outputs

        if isinstance(asked, StructuredOutputsParams):
            asked = {f.name: value for f in fields(asked) if (value := getattr(asked, f.name))}
        try:
            structure = check_structured_outputs(asked)
        except PydanticCustomError as error:
            raise ValueError(f"structured_outputs{error}") from None
        if structure is None:
            raise ValueError("structured_outputs: names no structure; leave it out")
        return structure

    @property
    def stops(self) -> list[str]:
        """The stop strings, as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def checked(self) -> Self:
        """A copy that is valid: fields may have been set since this was made. Raises ValueError."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields})

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, values: Any) -> Any:
        given = dict(values)
        for name, (neutral, reason) in _REFUSED.items():
            if name in given and given.pop(name) not in neutral:
                raise ValueError(f"{name}: {values[name]!r} is not supported: {reason}")
        return given

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        _ = self.structure
        if "" in self.stops:
            raise ValueError("stop: '' is not allowed; must be strings of at least one character")
        if self.truncate_prompt_tokens == 0:
            raise ValueError("truncate_prompt_tokens: 0 is not allowed; must be 1 and above, or -1")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens: {self.min_tokens} is not allowed; must be at most max_tokens, which "
                f"is {self.max_tokens}"
            )
        if self.n > 1 and self.temperature == 0:
            raise ValueError(
                f"n: {self.n} is not allowed at temperature 0, where all answers would be equal; "
                "must be 1"
            )
        return self


def _in_one_line(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(problem["loc"][0])
    known = SamplingParams.model_fields
    if problem["type"] == "extra_forbidden":
        return f"{name}: SamplingParams has no such field{nearest(name, known)}"
    return (
        f"{name}: {shorten(repr(problem['input']))} is not allowed; must be "
        f"{known[name].description}"
    )
