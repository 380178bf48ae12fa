"""The sampling fields beyond OpenAI's common ones: penalties, biases and what may be chosen at all.

Knows names, types, ranges and how they are told to the verifier, which checks what depends on the
model (vocabulary, max_tokens). Ranges are vLLM's.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError
from speculation.v1 import verifier_pb2 as pb

from gateway.fields import shown
from gateway.prompts import SHAPE_ERROR

INT32_MAX: Final = 2**31 - 1
# A value beyond float32 would become an infinity on its way.
_FLOAT32_MAX: Final = 3.4e38

_Penalty = Annotated[float | None, Field(ge=-2, le=2, description="a number from -2 to 2")]


def check_logit_bias(value: object) -> dict[int, float] | None:
    """Token ids (JSON knows only strings as keys) and numbers. Raises PydanticCustomError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong(f": {shown(value)} is not allowed; must be an object of token ids and numbers")
    return {_token_id(key): _bias(key, number) for key, number in value.items()}


class SamplingFields(BaseModel):
    """Fields of `pb.SamplingParams` of the same names."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    min_tokens: int | None = Field(
        None, ge=0, le=INT32_MAX, description="an integer from 0 to max_tokens"
    )
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    repetition_penalty: float | None = Field(
        None, gt=0, le=_FLOAT32_MAX, description="a number above 0"
    )
    logit_bias: Annotated[dict[int, float] | None, PlainValidator(check_logit_bias)] = None
    bad_words: list[str] | None = Field(None, description="a list of strings")
    allowed_token_ids: list[Annotated[int, Field(ge=0, le=INT32_MAX)]] | None = Field(
        None, min_length=1, description=f"a list of one or more token ids from 0 to {INT32_MAX}"
    )


def add_sampling_fields(sampling: pb.SamplingParams, body: SamplingFields) -> None:
    """Write what the client set; what it left out stays unset for the model's defaults."""
    sampling.MergeFrom(
        pb.SamplingParams(
            min_p=body.min_p,
            min_tokens=body.min_tokens,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=body.logit_bias or {},
            bad_words=body.bad_words or (),
            allowed_token_ids=body.allowed_token_ids or (),
        )
    )


def _token_id(key: Any) -> int:
    text = str(key)
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise _wrong(f": the key {shown(key)} is not a token id from 0 to {INT32_MAX}")
    return int(text)


def _bias(key: Any, number: object) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise _wrong(f"[{key}]: {shown(number)} is not allowed; must be a number from -100 to 100")
    # The verifier clamps, as vLLM does; here only what a float32 cannot hold is.
    return float(max(-_FLOAT32_MAX, min(number, _FLOAT32_MAX)))


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError(SHAPE_ERROR, "{message}", {"message": message})
