"""Whether anything good can come of a compiled grammar: what it admits, where it ends, how fast.

Knows compiled grammars; does not know what they were made of.
"""

from __future__ import annotations

import random
import time

import numpy as np
from xgrammar import CompiledGrammar, GrammarMatcher

from verifier_service.grammar.productive import unproductive_start
from verifier_service.grammar.structure import HopelessStructureError

_WALKS = 2
_STEPS = 48
# Processor seconds that one token of a walk may take: a step of the engine waits for it.
_MAX_TOKEN_S = 0.1


def check_prospects(grammar: CompiledGrammar) -> None:
    """Walk through the grammar at random. Raises HopelessStructureError.

    Refused are grammars that match nothing, that can never be complete, that reach a place where
    no token of the vocabulary fits, and those that take too long to follow. A walk sees some of
    these only; an answer that meets one later fails alone.
    """
    if unproductive_start(str(grammar.grammar)):
        raise HopelessStructureError("it matches nothing that ever ends")
    for seed in range(_WALKS):
        _walk(grammar, random.Random(seed))


def _walk(grammar: CompiledGrammar, rng: random.Random) -> None:
    size = grammar.tokenizer_info.vocab_size
    matcher = GrammarMatcher(grammar)
    mask = np.zeros((1, -(-size // 32)), dtype=np.int32)
    for step in range(_STEPS):
        begun = time.thread_time()
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:size]
        allowed = np.flatnonzero(bits)
        if not len(allowed):
            if matcher.is_completed():
                return
            raise HopelessStructureError(
                "it matches nothing"
                if step == 0
                else f"after {step} tokens nothing of this model's vocabulary can follow"
            )
        matcher.accept_token(int(allowed[rng.randrange(len(allowed))]))
        if time.thread_time() - begun > _MAX_TOKEN_S:
            raise HopelessStructureError(
                f"it takes more than {_MAX_TOKEN_S:g} s to work out what may follow a token"
            )
        if matcher.is_terminated():
            return
