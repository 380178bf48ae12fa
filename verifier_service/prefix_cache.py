"""Which blocks hold the keys of which beginnings of text: full blocks found again by their hash.

Knows ids, salts and block indices; does not know who owns blocks or what tensors they are. A block
is named by a keyed hash of everything its keys depend on: the salt, all ids before it, its own.
256 bits under a secret of this process: no tenant can make, or guess, another one's name.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np

_DIGEST_BYTES = 32


class PrefixCache:
    """Names of full blocks, and where each is found. One block for one name."""

    def __init__(self, block_size: int, secret: bytes | None = None) -> None:
        self._block_size = block_size
        self._secret = secret if secret is not None else secrets.token_bytes(32)
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}

    def extend_names(self, names: list[bytes], ids: Sequence[int], salt: str, count: int) -> None:
        """Name a sequence's first `count` blocks; `names` holds those that are named already.

        `ids` only ever grow, so names stay true. `count` blocks must be full.
        """
        size = self._block_size
        for index in range(len(names), count):
            parent = names[-1] if names else self._digest(b"salt", salt.encode())
            own = np.asarray(ids[index * size : (index + 1) * size], dtype="<i4").tobytes()
            names.append(self._digest(parent, own))

    def find(self, name: bytes) -> int | None:
        """The block of that name."""
        return self._block_of.get(name)

    def publish(self, name: bytes, block: int) -> bool:
        """Let a block be found; False where that name, or this block, has its place already."""
        if name in self._block_of or block in self._name_of:
            return False
        self._block_of[name] = block
        self._name_of[block] = name
        return True

    def forget(self, block: int) -> None:
        """A published block's contents are gone."""
        del self._block_of[self._name_of.pop(block)]

    def _digest(self, before: bytes, content: bytes) -> bytes:
        hash_ = hashlib.blake2b(before, digest_size=_DIGEST_BYTES, key=self._secret)
        hash_.update(content)
        return hash_.digest()
