"""The part of a load in which every client has a request in flight, and the tokens of that part.

Knows times and counts; neither who took them nor what is made of them. Clients take prompts from
one queue. Where drafts let answers end at different times, a load ends with a stretch in which
only some clients have anything to do: its speed is not that of so many clients. What the rest
still leans to: a load begins with as many slow answers as quick ones, while a long one comes to
hold more of the slow, so with few prompts a client the speed is a little high.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """When a request was sent and its answer was there, in seconds from the start of the load."""

    sent: float
    received: float


class Steady(NamedTuple):
    """`tokens` is a sum of shares, so it need not be whole."""

    seconds: float
    tokens: float


def steady(
    spans: Sequence[Span], new_tokens: Sequence[int], clients: int, seconds: float
) -> Steady:
    """From the start until a client first has its answer and finds no prompt left.

    Of an answer that ends later, as large a share of the tokens counts as of its span lies before
    that moment: when each token came is not known. So its prefill counts like its tokens, of which
    fewer had come by then. With one client, or no more prompts than clients, nobody takes a second
    prompt while others are busy, and the whole load counts, `seconds` long.
    """
    if clients < 1:
        raise ValueError(f"{clients} clients send nothing")
    if clients == 1 or len(spans) <= clients:
        return Steady(seconds, float(sum(new_tokens)))
    # Every answer but the last `clients` ones let its client take a further prompt.
    end = sorted(span.received for span in spans)[len(spans) - clients]
    counted = sum(
        count * _share_before(end, span) for count, span in zip(new_tokens, spans, strict=True)
    )
    return Steady(end, counted)


def _share_before(end: float, span: Span) -> float:
    if span.received <= end:
        return 1.0
    return max(end - span.sent, 0.0) / (span.received - span.sent)
