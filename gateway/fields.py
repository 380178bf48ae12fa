"""Request fields that OpenAI's and vLLM's APIs know and Outrider does not support yet.

Knows their names and the values that ask for nothing; a request may carry those. Does not know
the supported fields: bodies.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.errors import bad_request

_OFF: Final[tuple[Any, ...]] = (None, False)
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})

# Field -> the values that ask for nothing.
_SAMPLING: Final[dict[str, tuple[Any, ...]]] = {
    "length_penalty": (None, 1),
    "use_beam_search": _OFF,
    "best_of": (None, 1),
    "logprob_token_ids": _EMPTY,
    "repetition_detection": (None,),
    "thinking_token_budget": (None,),
}

_OUTPUT: Final[dict[str, tuple[Any, ...]]] = {
    "guided_json": _EMPTY,
    "guided_regex": _EMPTY,
    "guided_choice": _EMPTY,
    "guided_grammar": _EMPTY,
    "guided_json_object": _OFF,
    "guided_decoding_backend": _EMPTY,
    "guided_whitespace_pattern": _EMPTY,
    "return_token_offsets": _OFF,
    "routed_experts_prompt_start": (None, 0),
}

_TRANSFER: Final[dict[str, tuple[Any, ...]]] = {
    "kv_transfer_params": _EMPTY,
    "ec_transfer_params": _EMPTY,
    "vllm_xargs": _EMPTY,
}

COMPLETION_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    **_SAMPLING,
    **_OUTPUT,
    **_TRANSFER,
    "suffix": (None, ""),
    "prompt_embeds": _EMPTY,
}

CHAT_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    **_SAMPLING,
    **_OUTPUT,
    **_TRANSFER,
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "include_reasoning": (None, True),
    "media_io_kwargs": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "return_prompt_text": _OFF,
    "return_assistant_tokens_mask": _OFF,
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "verbosity": (None, "medium"),
}

# Deprecated field -> the one that took its place.
_SUCCESSORS: Final = {
    "functions": "tools",
    "function_call": "tool_choice",
    "guided_json": "structured_outputs with json",
    "guided_regex": "structured_outputs with regex",
    "guided_choice": "structured_outputs with choice",
    "guided_grammar": "structured_outputs with grammar",
    "guided_json_object": "structured_outputs with json_object",
    "guided_decoding_backend": "structured_outputs alone, which has one backend",
    "guided_whitespace_pattern": "structured_outputs with disable_any_whitespace",
}

# Fields that ask for nothing the answer could lack: accepted with any value.
IGNORED: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "session_id",
        "spaces_between_special_tokens",
        "store",
        "user",
    }
)


def refuse_unsupported(body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises ApiError 400 naming the first field that asks for what is not supported yet."""
    for field, neutral in unsupported.items():
        if field not in body or _is_one_of(body[field], neutral):
            continue
        if field in _SUCCESSORS:
            raise bad_request(
                f"{field}: deprecated and not supported; leave {field} out and "
                f"send {_SUCCESSORS[field]}",
                field,
            )
        raise bad_request(
            f"{field}: {shown(body[field])} is not supported yet; leave {field} out "
            f"or send {' or '.join(shown(value) for value in neutral)}",
            field,
        )


def _is_one_of(value: object, neutral: tuple[object, ...]) -> bool:
    # In Python 0 == False, but logprobs=0 asks for log-probabilities and logprobs=false does not.
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
    )


def shown(value: object, limit: int = 60) -> str:
    """`value` as an error message shows it: JSON-like and short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
