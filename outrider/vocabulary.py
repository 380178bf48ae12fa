"""A vocabulary's fingerprint: equal iff every id means the same token.

Knows token strings and ids only; no tokenizer library. A verifier and a proposer compare
fingerprints in their handshake, so that ids of another vocabulary are refused before any draft.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

_HEX_DIGITS = 16


def fingerprint(tokens: Mapping[str, int]) -> str:
    """SHA-256 over the id-sorted (id, token) pairs, its first 16 hex digits.

    `tokens` maps each token string to its id, as a tokenizer's `get_vocab()` gives it. The
    order of the mapping and padded rows of the model's output layer do not matter. Raises
    ValueError where the mapping is empty: nothing would be compared.
    """
    if not tokens:
        raise ValueError("tokens: the vocabulary is empty; a fingerprint needs at least one token")
    digest = hashlib.sha256()
    for token, token_id in sorted(tokens.items(), key=lambda entry: (entry[1], entry[0])):
        # Lone surrogates occur in byte-level vocabularies read with errors="surrogateescape".
        text = token.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (token_id, len(text)))
        digest.update(text)
    return digest.hexdigest()[:_HEX_DIGITS]
