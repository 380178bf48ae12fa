"""Which verifier answered a prompt's beginning before: its cache may still hold that beginning.

Knows prompts as bytes and verifiers as addresses; does not know who is alive or busy.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from typing import Final

from speculation.v1 import verifier_pb2 as pb

# Shorter beginnings are computed again as fast as they are looked for.
SHORTEST_BYTES: Final = 256
# Beginnings are compared at 256 bytes, 512, 1024 and so on, up to 4 MiB.
_LENGTHS: Final = tuple(accumulate(repeat(2, 14), lambda a, b: a * b, initial=SHORTEST_BYTES))
_KEY_BYTES: Final = 16
_BYTES_OF_ID: Final = 4


def prefix_keys(request: pb.GenerateRequest) -> tuple[bytes, ...]:
    """A key for each beginning of the prompt that is compared, the longest first.

    Requests whose cached beginnings must not be shared (another `cache_salt`) share no key, nor
    do text and ids, which cannot be compared without a tokenizer. Empty for short prompts.
    """
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    kind = request.WhichOneof("prompt") or ""
    for part in (request.model, request.cache_salt, kind, request.chat.tools_json):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    prompt = _prompt_bytes(request)
    keys: list[bytes] = []
    begin = 0
    for end in _LENGTHS:
        if end > len(prompt):
            break
        digest.update(prompt[begin:end])
        keys.append(digest.digest())
        begin = end
    return tuple(reversed(keys))


class PrefixAffinity:
    """The verifier that was last sent each beginning, for the most recently used `capacity`."""

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._addresses: OrderedDict[bytes, str] = OrderedDict()

    def sent(self, keys: Sequence[bytes], address: str) -> None:
        """A prompt with these beginnings goes to the verifier at `address`."""
        for key in keys:
            self._addresses[key] = address
            self._addresses.move_to_end(key)
        while len(self._addresses) > self._capacity:
            self._addresses.popitem(last=False)

    def addresses(self, keys: Sequence[bytes]) -> Iterator[str]:
        """Who was sent these beginnings, for the longest one first; may repeat."""
        return (self._addresses[key] for key in keys if key in self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)


def _prompt_bytes(request: pb.GenerateRequest) -> bytes:
    longest = _LENGTHS[-1]
    match request.WhichOneof("prompt"):
        case "token_ids":
            ids = request.token_ids.ids[: longest // _BYTES_OF_ID]
            return b"".join(i.to_bytes(_BYTES_OF_ID, "big", signed=True) for i in ids)
        case "chat":
            # Up to its end, the JSON of a conversation is the beginning of the continued one's.
            return request.chat.messages_json.encode()[:longest]
        case _:
            return request.text.encode()[:longest]
