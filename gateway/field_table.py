"""What becomes of every request field that OpenAI's or vLLM's server knows.

Knows one line about each field. Whether a field works, is refused or is ignored is read from where
that is decided: the bodies of bodies.py and the lists of fields.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gateway.bodies import ChatBody, CompletionBody
from gateway.fields import CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED, IGNORED


class Status(Enum):
    WORKS = "works"
    REFUSED = "refused"
    IGNORED = "ignored"
    # Not a field of this endpoint; ignored like any name that nobody knows.
    ABSENT = "—"


@dataclass(frozen=True, slots=True)
class Row:
    """One field at both endpoints; `neutral` are the values that a refused field may have."""

    section: str
    name: str
    completions: Status
    chat: Status
    note: str
    neutral: tuple[Any, ...] = ()


PROMPT: Final = {
    "prompt": "a string, a list of token ids, or a list of either: one answer for each",
    "messages": "text content; text parts are joined by newlines",
    "echo": "completions: the prompt in front of the answer, with `logprobs` its tokens' too; "
    "chat: the last message in front of the answer where both are the assistant's",
    "add_special_tokens": "true for completions and false for chat unless set",
    "truncate_prompt_tokens": "keeps 1 to `max_model_len` tokens, -1 as many as fit beside "
    "`max_tokens`; special tokens in front count and stay",
    "truncation_side": "`left` (default) loses the prompt's first tokens, `right` its last",
    "add_generation_prompt": "true unless `continue_final_message` is",
    "continue_final_message": "the answer goes on where the last message ends",
    "documents": "a list of objects, given to the chat template",
    "chat_template": "a Jinja template instead of the model's; needs a verifier started with "
    "`--trust-request-chat-template`, as in vLLM",
    "chat_template_kwargs": "variables for the chat template",
    "reasoning_effort": "given to the chat template as `reasoning_effort`; a template that does "
    "not read it answers as without it",
    "suffix": "no text is filled in before a suffix",
    "prompt_embeds": "prompts are text or token ids",
    "media_io_kwargs": "prompts are text",
    "mm_processor_kwargs": "prompts are text",
}

SAMPLING: Final = {
    "max_tokens": "completions: 16 unless set, 0 with `echo` alone; chat: deprecated by OpenAI for "
    "`max_completion_tokens`",
    "max_completion_tokens": "to the context's end unless set; wins over `max_tokens`",
    "min_tokens": "no end-of-sequence or stop token among the first so many; at most `max_tokens`",
    "temperature": "0 to 2; 0 is greedy",
    "top_p": "above 0, at most 1",
    "top_k": "-1 or 0: no limit",
    "min_p": "0 to 1 times the most likely token's probability; 0: no limit",
    "presence_penalty": "-2 to 2, over the answer's tokens",
    "frequency_penalty": "-2 to 2, over the answer's tokens",
    "repetition_penalty": "above 0, over the prompt's and the answer's tokens",
    "logit_bias": "an object of token ids and numbers, clamped to -100 to 100",
    "bad_words": "up to 1,024 strings whose tokens never occur in a row",
    "allowed_token_ids": "nothing else is chosen; at least one id",
    "seed": "signed 64-bit; drawn at random unless set. Under the default rule speculation does "
    "not change what a seed gives",
    "n": "1 to 128 answers of each prompt with seeds `seed`, `seed` + 1, …; at most 256 answers of "
    "one request; above 1 not at temperature 0",
    "stop": "a string or up to 16 of them",
    "stop_token_ids": "beside the model's own end-of-sequence ids",
    "ignore_eos": "those are no end then",
    "include_stop_str_in_output": "the stop string or token's text stays in the answer",
    "best_of": "send `n`; answers are not ranked",
    "use_beam_search": "answers are sampled",
    "length_penalty": "belongs to beam search",
    "repetition_detection": "send a penalty, or cancel",
    "thinking_token_budget": "reasoning is not told apart from the answer",
}

OUTPUT: Final = {
    "logprobs": "completions: how many of the most likely tokens at each position, to the "
    "verifier's `--max-logprobs` (20), -1 for the whole vocabulary; chat: true or false. "
    "Of the target's own distribution, before temperature and masks",
    "top_logprobs": "how many of the most likely tokens; needs `logprobs`",
    "prompt_logprobs": "the same of the prompt's tokens; not with `stream`",
    "logprob_token_ids": "log-probabilities of chosen ids; `logprobs` tells the most likely",
    "return_tokens_as_token_ids": "`token_id:17` instead of text in log-probabilities",
    "return_token_ids": "`token_ids` and `prompt_token_ids` beside text",
    "return_token_offsets": "character offsets; completions' `logprobs.text_offset` has them",
    "return_prompt_text": "`/detokenize` gives the text of `prompt_token_ids`",
    "return_assistant_tokens_mask": "needs templates marked for training",
    "skip_special_tokens": "true unless set; false where tools are offered with `auto`",
    "spaces_between_special_tokens": "fast tokenizers write no such spaces, whatever it is",
    "response_format": "`text`, `json_object`, `json_schema`, `structural_tag`",
    "structured_outputs": "one of `json`, `json_object`, `regex`, `choice`, `grammar`, "
    "`structural_tag`; not together with `response_format`",
    "guided_json": "vLLM's old name; send `structured_outputs`",
    "guided_regex": "vLLM's old name; send `structured_outputs`",
    "guided_choice": "vLLM's old name; send `structured_outputs`",
    "guided_grammar": "vLLM's old name; send `structured_outputs`",
    "guided_json_object": "vLLM's old name; send `structured_outputs`",
    "guided_decoding_backend": "there is one backend",
    "guided_whitespace_pattern": "`structured_outputs` has `disable_any_whitespace`",
    "include_reasoning": "reasoning is not told apart from the answer",
    "modalities": "answers are text",
    "audio": "answers are text",
    "verbosity": "OpenAI's own models only",
    "stream": "server-sent events",
    "stream_options": "`include_usage`, `continuous_usage_stats`; only with `stream`",
    "stream_interval": "tokens in each chunk; the first is sent at once, and one round's "
    "tokens are not parted",
}

TOOLS: Final = {
    "tools": "functions; how they are told, held and read: [tools.md](tools.md)",
    "tool_choice": "`none`, `auto`, `required`, or a named function; needs `tools` unless `none`",
    "parallel_tool_calls": "false: one call at most is told",
    "functions": "OpenAI's old name; send `tools`",
    "function_call": "OpenAI's old name; send `tool_choice`",
    "web_search_options": "nothing is searched",
}

REQUEST: Final = {
    "model": "the served name; may be left out",
    "request_id": "1 to 128 printable characters; else `X-Request-Id`, else random",
    "priority": "signed 32-bit; the lower, the sooner",
    "cache_salt": "only requests of the same salt share cached prefixes and drafts",
    "speculative_decoding": "Outrider's own: `enabled`, `num_speculative_tokens`, `proposer`; "
    "changes speed, never the answer's law. `rounds`: true tells of each round beside `choices` "
    "([gateway.md](gateway.md))",
    "prediction": '`{"type": "content", "content": …}`, a string or text parts: what much of the '
    "answer will be. Drafts for this request that change its speed alone "
    "([metrics.md](metrics.md)); also with `tools`, `n`, `logprobs` and penalties, which OpenAI "
    "refuses",
    "user": "changes nothing",
    "session_id": "changes nothing; routing follows load",
    "metadata": "changes nothing; nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "safety_identifier": "changes nothing",
    "prompt_cache_key": "prefixes are found by content",
    "kv_transfer_params": "caches are not moved between servers",
    "ec_transfer_params": "caches are not moved between servers",
    "vllm_xargs": "there are no such plugins",
    "routed_experts_prompt_start": "experts are not reported",
}

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Prompt": PROMPT,
    "Sampling": SAMPLING,
    "Output": OUTPUT,
    "Tools": TOOLS,
    "Request": REQUEST,
}


def rows() -> Iterator[Row]:
    """All fields, by section."""
    refused = {**COMPLETION_UNSUPPORTED, **CHAT_UNSUPPORTED}
    for section, notes in SECTIONS.items():
        for name, note in notes.items():
            yield Row(
                section,
                name,
                _status(name, CompletionBody.model_fields, COMPLETION_UNSUPPORTED),
                _status(name, ChatBody.model_fields, CHAT_UNSUPPORTED),
                note,
                tuple(refused.get(name, ())),
            )


def _status(name: str, body: Mapping[str, object], unsupported: Mapping[str, object]) -> Status:
    if name in body:
        return Status.WORKS
    if name in unsupported:
        return Status.REFUSED
    return Status.IGNORED if name in IGNORED else Status.ABSENT
