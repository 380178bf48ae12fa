"""What a proposer may be configured with, and the environment variables that Outrider reads.

Knows the rules of a speculative config's values; how users write one is in
speculative_options.py. Does not know how proposers or the verifier work.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeGuard

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from outrider.draft_schedule import DraftSchedule
from outrider.errors import InputError
from outrider.speculative_keys import KEYS
from outrider.speculative_names import METHODS

MAX_SPECULATIVE_TOKENS = 128
DEFAULT_SUFFIX_TREE_DEPTH = 24
# The work of a token that repeats itself for ever grows with the depth.
MAX_SUFFIX_TREE_DEPTH = 1024
DEFAULT_LOOKUP = 5
API_KEY_VARIABLE = "OUTRIDER_API_KEY"

PositiveInt = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


class SpeculativeConfig(BaseModel):
    """One proposer, as `--speculative-config` describes it.

    Defaults are vLLM's, but for `rejection_sample_method`, where `coupled` has no counterpart
    there, `enable_adaptive_verification`, which is on and for every method, and
    `draft_sample_method`, where None means what the rejection rule allows best.
    `num_speculative_tokens` is the ceiling K; the verifier may take fewer.
    `num_speculative_tokens_per_batch_size` holds (first, last, K) in ascending order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: Literal["ngram", "suffix", "draft_model"]
    model: Name | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_SPECULATIVE_TOKENS)]
    prompt_lookup_min: PositiveInt = DEFAULT_LOOKUP
    prompt_lookup_max: PositiveInt = DEFAULT_LOOKUP
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=1, le=MAX_SUFFIX_TREE_DEPTH)] = (
        DEFAULT_SUFFIX_TREE_DEPTH
    )
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] = 10_000
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    draft_tensor_parallel_size: PositiveInt | None = None
    quantization: Literal["none", "int8", "fp8"] | None = None
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    revision: Name | None = None
    enforce_eager: bool = False
    draft_sample_method: Literal["greedy", "probabilistic"] | None = None
    rejection_sample_method: Literal["coupled", "standard", "block"] = "coupled"
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    enable_adaptive_verification: bool = True

    @field_validator("num_speculative_tokens_per_batch_size", mode="before")
    @classmethod
    def _check_schedule(cls, value: object) -> object:
        return None if value is None else DraftSchedule.of(value).ranges

    @field_validator("draft_tensor_parallel_size")
    @classmethod
    def _check_devices(cls, size: int | None) -> int | None:
        if size is not None and size > 1:
            raise ValueError("the draft model runs on one device, as the target does; allowed is 1")
        return size

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Mapping[str, object]) -> dict[str, object]:
        filled = dict(values)
        # Only a valid value is carried over, so that a wrong one is refused under its own key.
        for bound, other in (
            ("prompt_lookup_min", "prompt_lookup_max"),
            ("prompt_lookup_max", "prompt_lookup_min"),
        ):
            if filled.get(bound) is None and _is_count(filled.get(other)):
                filled[bound] = filled[other]
        if filled.get("method") == "suffix" and "num_speculative_tokens" not in filled:
            depth = filled.get("suffix_decoding_max_tree_depth")
            filled["num_speculative_tokens"] = (
                min(depth, MAX_SPECULATIVE_TOKENS)
                if _is_count(depth)
                else DEFAULT_SUFFIX_TREE_DEPTH
            )
        return filled

    @model_validator(mode="after")
    def _check_window(self) -> SpeculativeConfig:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} is greater than prompt_lookup_max "
                f"{self.prompt_lookup_max}"
            )
        return self

    @property
    def schedule(self) -> DraftSchedule | None:
        """`num_speculative_tokens_per_batch_size`, to be asked."""
        ranges = self.num_speculative_tokens_per_batch_size
        return None if ranges is None else DraftSchedule(ranges)

    def method_options(self) -> dict[str, object]:
        """The method's own options that were given or follow from one that was."""
        return {
            key: getattr(self, key)
            for key, row in KEYS.items()
            if key in self.model_fields_set and not set(METHODS) <= set(row.methods)
        }

    def describe(self, without: Collection[str] = ()) -> str:
        """The keys that have a meaning for the method, as the startup log shows them."""
        shown = (
            f"{key}={value!r}"
            for key, row in KEYS.items()
            if self.method in row.methods
            and key not in without
            and (value := getattr(self, key, None)) is not None
        )
        return f"SpeculativeConfig({', '.join(shown)})"

    def __repr__(self) -> str:
        return self.describe()

    __str__ = __repr__


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# What `serve` speculates with when nothing else is asked for: both cheap proposers, at a length
# that one verification on a CPU still costs about what a single token does.
DEFAULT_SPECULATION: tuple[SpeculativeConfig, ...] = (
    SpeculativeConfig(
        method="ngram", num_speculative_tokens=8, prompt_lookup_min=2, prompt_lookup_max=5
    ),
    SpeculativeConfig(method="suffix", num_speculative_tokens=8),
)


def cache_directory(override: Path | None = None) -> Path:
    """Where models are kept: `override`, $OUTRIDER_CACHE_DIR, or the user's cache directory."""
    if override is not None:
        return override.expanduser().absolute()
    from_environment = os.environ.get("OUTRIDER_CACHE_DIR")
    if from_environment:
        return Path(from_environment).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("outrider"))


def data_directory() -> Path:
    """Where evidence is kept: $OUTRIDER_DATA_DIR, or the user's data directory."""
    from_environment = os.environ.get("OUTRIDER_DATA_DIR")
    if from_environment:
        return Path(from_environment).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("outrider"))


def openai_api_key() -> str | None:
    """The key that OpenAI's own clients would send: $OPENAI_API_KEY; None where it is not set."""
    return os.environ.get("OPENAI_API_KEY") or None


def outrider_api_keys() -> tuple[str, ...]:
    """Keys of $OUTRIDER_API_KEY, commas between them: what a gateway asks for where no --api-key
    says so, and the first of them what Outrider's own clients send.
    """
    keys = os.environ.get(API_KEY_VARIABLE)
    return tuple(keys.split(",")) if keys else ()


def require_token_for_each(
    max_num_batched_tokens: int, max_num_seqs: int, written: Callable[[str], str]
) -> None:
    """Raises InputError where a step has no token for each sequence; `written` names options."""
    if max_num_batched_tokens < max_num_seqs:
        raise InputError(
            f"{written('max_num_batched_tokens')}: {max_num_batched_tokens} is less than "
            f"{written('max_num_seqs')} ({max_num_seqs}); a step needs one token for each sequence"
        )


def flag(key: str) -> str:
    """How an option is written on the command line."""
    return f"--{key.replace('_', '-')}"


def client_api_key() -> str | None:
    """The key for a server that may be Outrider's or another: ours where one is set, else the one
    that OpenAI's own clients would send.
    """
    return next(iter(outrider_api_keys()), None) or openai_api_key()


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a child process: this process's own, with `changes`."""
    return {**os.environ, **changes}


def describe_validation(error: ValidationError, option: str) -> str:
    """The first problem pydantic found, as one line: option, key, value, what is allowed."""
    problem = error.errors(include_url=False, include_context=True)[0]
    key = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if not key:
        return f"{option}: {message}"
    if problem["type"] == "missing":
        return f"{option}: {key} is required"
    lowered = message[:1].lower() + message[1:]
    return f"{option}: {key}: {shorten(repr(problem['input']))}: {lowered}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def shorten(text: str, limit: int = 80) -> str:
    """`text`, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
