"""The request bodies of the OpenAI endpoints as types.

Knows names, types, ranges and defaults; does not know the model: what depends on it (vocabulary,
context length, template) is checked by the verifier. Fields follow vLLM's OpenAI-compatible server.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from gateway.prediction import check_prediction
from gateway.prompts import Prompt, check_messages, check_prompts, check_stop
from gateway.sampling_fields import SamplingFields
from gateway.structured import StructuredFields
from gateway.tools.definitions import (
    Tool,
    ToolChoice,
    check_tool_choice,
    check_tools,
    resolve_choice,
)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_Flag = Annotated[bool | None, Field(description="true or false")]
_TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_TOKEN_IDS = f"a list of token ids from 0 to {INT32_MAX}"
_MaxTokens = Annotated[
    int | None, Field(ge=1, le=INT32_MAX, description=f"an integer from 1 to {INT32_MAX}")
]


_Logprobs = Annotated[
    int | None,
    Field(
        ge=-1,
        le=INT32_MAX,
        description="an integer: the number of top tokens at each position, or -1 for all",
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(_Body):
    include_usage: _Flag = None
    continuous_usage_stats: _Flag = None


class SpeculativeDecoding(BaseModel):
    """Outrider's own: how this request speculates. It changes speed, never the answer's law."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    enabled: _Flag = None
    num_speculative_tokens: int | None = Field(
        None, ge=0, le=128, description="an integer from 0 to 128"
    )
    proposer: str | None = Field(
        None, min_length=1, max_length=256, description="the name of an attached proposer"
    )
    # Whether the response tells of each round.
    rounds: _Flag = None


class GenerationBody(_Body, SamplingFields, StructuredFields):
    """What both generation endpoints share."""

    model: str | None = Field(None, description="the name of a served model")
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0, at most 1")
    top_k: int | None = Field(
        None, ge=-1, le=INT32_MAX, description="an integer: -1 or 0 (no limit), or 1 and above"
    )
    seed: int | None = Field(
        None, ge=-INT64_MAX - 1, le=INT64_MAX, description="a signed 64-bit integer"
    )
    n: int | None = Field(None, ge=1, le=128, description="an integer from 1 to 128")
    stop: Annotated[list[str], PlainValidator(check_stop)] = []
    stop_token_ids: list[_TokenId] | None = Field(None, description=_TOKEN_IDS)
    ignore_eos: _Flag = None
    include_stop_str_in_output: _Flag = None
    skip_special_tokens: _Flag = None
    add_special_tokens: _Flag = None
    return_token_ids: _Flag = None
    return_tokens_as_token_ids: _Flag = None
    prompt_logprobs: _Logprobs = None
    stream: _Flag = None
    stream_options: StreamOptions | None = Field(None, description="an object")
    request_id: str | None = Field(
        None,
        pattern=r"^[\x21-\x7e]{1,128}$",
        description="1 to 128 printable ASCII characters without spaces",
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        le=INT32_MAX,
        description="an integer: 1 and above, or -1 for as many tokens as fit",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="'left' or 'right': the side that loses tokens"
    )
    stream_interval: int | None = Field(
        None, ge=1, le=INT32_MAX, description="an integer from 1: tokens in each chunk"
    )
    priority: int | None = Field(
        None, ge=-INT32_MAX - 1, le=INT32_MAX, description="a signed 32-bit integer"
    )
    cache_salt: str | None = Field(
        None, min_length=1, max_length=1024, description="a string of 1 to 1024 characters"
    )
    speculative_decoding: SpeculativeDecoding | None = Field(None, description="an object")
    # The predicted text; OpenAI's object is read by the check.
    prediction: Annotated[str | None, PlainValidator(check_prediction)] = None

    @property
    def choices_per_prompt(self) -> int:
        return self.n or 1


class CompletionBody(GenerationBody):
    prompt: Annotated[list[Prompt], PlainValidator(check_prompts)]
    # 0 asks for nothing but the echoed prompt.
    max_tokens: int | None = Field(
        16, ge=0, le=INT32_MAX, description=f"an integer from 1 to {INT32_MAX}"
    )
    echo: _Flag = None
    logprobs: _Logprobs = None


class _ChatFields(_Body):
    """What becomes a prompt through the chat template."""

    add_generation_prompt: _Flag = None
    continue_final_message: _Flag = None
    documents: list[dict[str, Any]] | None = Field(None, description="a list of objects")
    chat_template: str | None = Field(None, description="a Jinja template, as a string")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")


class ChatBody(GenerationBody, _ChatFields):
    messages: Annotated[list[dict[str, Any]], PlainValidator(check_messages)]
    max_tokens: _MaxTokens = None
    max_completion_tokens: _MaxTokens = None
    logprobs: _Flag = None
    top_logprobs: _Logprobs = None
    echo: _Flag = None
    tools: Annotated[list[Tool], PlainValidator(check_tools)] = []
    tool_choice: Annotated[ToolChoice | None, PlainValidator(check_tool_choice)] = None
    parallel_tool_calls: _Flag = None
    reasoning_effort: _Effort | None = Field(
        None, description=f"one of {', '.join(get_args(_Effort))}"
    )

    @property
    def may_call_in_parallel(self) -> bool:
        """Whether one answer may hold several tool calls; unset: yes."""
        return self.parallel_tool_calls is not False

    @property
    def resolved_tool_choice(self) -> ToolChoice:
        """Raises ApiError 400 where the choice needs tools that are not offered."""
        return resolve_choice(self.tools, self.tool_choice)


class TokenizeBody(_ChatFields):
    """Either `prompt` or `messages`, which goes through the chat template."""

    model: str | None = Field(None, description="the name of a served model")
    prompt: str | None = Field(None, description="a string")
    messages: Annotated[list[dict[str, Any]] | None, PlainValidator(check_messages)] = None
    tools: Annotated[list[Tool], PlainValidator(check_tools)] = []
    add_special_tokens: _Flag = None
    return_token_strs: _Flag = None


class DetokenizeBody(_Body):
    model: str | None = Field(None, description="the name of a served model")
    tokens: list[_TokenId] = Field(description=_TOKEN_IDS)
    return_token_texts: _Flag = None
