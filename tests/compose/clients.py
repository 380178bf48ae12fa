"""Clients of the published port: streams that say how they ended, sums that can be compared."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx

CLIENTS = 8
MAX_TOKENS = 64
REQUEST_TIMEOUT_S = 180.0

_PROMPTS = (
    "Write a Python function that adds two numbers, then one that subtracts them.",
    "Repeat this list twice: red, green, blue, yellow, red, green, blue, yellow.",
    "Explain in three sentences why the sky is blue.",
    "Count from 1 to 40, one number in each line.",
    "Translate to French: the cat sits on the mat, the cat sleeps on the mat.",
    "Write a short poem about the sea.",
    "List the days of the week, then list them again in reverse order.",
    "Write a JSON object with the keys name, age and city, three times.",
)
# Metrics, and where each request's own object has the same number.
TOTALS = {
    "vllm:generation_tokens_total": "completion_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:spec_decode_num_drafts_total": "num_spec_steps",
    "vllm:spec_decode_num_draft_tokens_total": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "num_accepted_draft_tokens",
}
_SAMPLE = re.compile(r"(?P<name>[\w:]+)\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+-]+)")


@dataclass(slots=True)
class Answer:
    """What a client got: `status` is HTTP's, `error` the stream's own last word."""

    status: int = 0
    token_ids: list[int] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    speculation: dict[str, int] = field(default_factory=dict)
    error: str = ""
    done: bool = False

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.done and not self.error

    def figure(self, name: str) -> int:
        return self.usage[name] if name in self.usage else self.speculation[name]


def request_body(number: int, max_tokens: int = MAX_TOKENS) -> dict[str, object]:
    """A chat of client `number`: even ones greedy, odd ones sampled with a seed."""
    return {
        "messages": [{"role": "user", "content": _PROMPTS[number % len(_PROMPTS)]}],
        "max_tokens": max_tokens,
        "temperature": 0.0 if number % 2 == 0 else 0.8,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }


async def stream(
    http: httpx.AsyncClient,
    number: int,
    max_tokens: int = MAX_TOKENS,
    begun: Callable[[], None] = lambda: None,
    speculation: dict[str, object] | None = None,
) -> Answer:
    """One streamed chat; `begun` is called at its first token.

    `speculation` is its `speculative_decoding` object, if it has one.
    """
    answer = Answer()
    url, body = "/v1/chat/completions", request_body(number, max_tokens)
    if speculation is not None:
        body["speculative_decoding"] = speculation
    try:
        async with http.stream("POST", url, json=body) as response:
            answer.status = response.status_code
            if response.status_code != 200:
                answer.error = (await response.aread()).decode()
                return answer
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    answer.done = True
                elif line.startswith("data: "):
                    _take(answer, json.loads(line.removeprefix("data: ")))
                    if answer.token_ids:
                        begun()
    except httpx.TransportError as error:
        answer.error = f"transport: {error!r}"
    return answer


async def streams(
    url: str, meanwhile: Callable[[], None] | None = None, max_tokens: int = MAX_TOKENS
) -> list[Answer]:
    """All clients at once; `meanwhile` runs on a thread once all of them have begun."""
    waiting = set(range(CLIENTS))
    all_begun = asyncio.Event()

    def begun(number: int) -> None:
        waiting.discard(number)
        if not waiting:
            all_begun.set()

    async with client(url) as http:
        running = [
            asyncio.create_task(stream(http, number, max_tokens, partial(begun, number)))
            for number in range(CLIENTS)
        ]
        if meanwhile is not None:
            await asyncio.wait_for(all_begun.wait(), REQUEST_TIMEOUT_S)
            await asyncio.to_thread(meanwhile)
        return list(await asyncio.gather(*running))


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=REQUEST_TIMEOUT_S, trust_env=False)


async def totals(url: str) -> dict[str, Counter[str]]:
    """`TOTALS`' metrics by engine, as the gateway tells them now."""
    async with client(url) as http:
        text = (await http.get("/metrics")).raise_for_status().text
    found: dict[str, Counter[str]] = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None or sample["name"] not in TOTALS:
            continue
        engine = re.search(r'engine="([^"]*)"', sample["labels"])
        if engine is None:
            raise ValueError(f"no engine label: {line}")
        found.setdefault(engine[1], Counter())[sample["name"]] += int(float(sample["value"]))
    return found


async def evidence(url: str) -> Counter[str]:
    """`TOTALS` but for prompts, of all that verifiers told over OTLP."""
    async with client(url) as http:
        answer = (await http.get("/v1/acceptance")).raise_for_status().json()
    counted = answer["totals"]
    return Counter({name: counted[key] for name, key in TOTALS.items() if key in counted})


async def serving(url: str) -> list[str]:
    """The verifiers' addresses that serve; empty where the gateway says that none does."""
    async with client(url) as http:
        try:
            response = await http.get("/health")
        except httpx.TransportError:
            return []
    if response.status_code != 200:
        return []
    return [entry["address"] for entry in response.json()["verifiers"] if entry["serves"]]


async def eventually(
    what: str, check: Callable[[], bool], seconds: float, pause_s: float = 0.5
) -> None:
    """Wait until `check` (run on a thread) is true. Raises TimeoutError saying `what` was not."""
    try:
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(check):
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise TimeoutError(f"not within {seconds:g} s: {what}") from None


def sums(answers: Sequence[Answer]) -> Counter[str]:
    """The answers' own figures, added up under the metrics' names."""
    return Counter(
        {name: sum(answer.figure(key) for answer in answers) for name, key in TOTALS.items()}
    )


def _take(answer: Answer, event: dict[str, object]) -> None:
    error = event.get("error")
    if isinstance(error, dict):
        answer.error = f"{error['code']}: {error['message']}"
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        answer.token_ids.extend(choice.get("token_ids") or ())
    usage, metrics = event.get("usage"), event.get("metrics")
    if isinstance(usage, dict):
        answer.usage = {key: usage[key] for key in ("prompt_tokens", "completion_tokens")}
    if isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict):
        answer.speculation = metrics["speculative_decoding"]
