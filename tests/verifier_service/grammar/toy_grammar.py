"""Grammars over a toy vocabulary: twelve tokens, some of several characters, two end the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from xgrammar import CompiledGrammar, GrammarCompiler

from tests.toy import Toy
from tests.toy_engine import Guess
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import SequenceView

PIECES = ("a", "b", "c", "ab", "bc", "1", "[", "]", ",", "", "", '"a"')
STOP, OTHER_STOP = 9, 10
VOCABULARY = Vocabulary(tuple(p.encode() for p in PIECES), (STOP,))
TOY = Toy.target(vocab_size=len(PIECES), seed=3)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY.info(), max_threads=1, cache_enabled=False)


@cache
def regex(pattern: str) -> CompiledGrammar:
    return compiler().compile_regex(pattern)


@cache
def ebnf(text: str) -> CompiledGrammar:
    return compiler().compile_grammar(text)


def constraint(pattern: str) -> GrammarConstraint:
    return GrammarConstraint(regex(pattern))


def text(ids: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in ids)


def ids_of(mask: Sequence[int]) -> set[int]:
    """The ids of the toy's vocabulary that a mask's row allows."""
    return {i for i in range(len(PIECES)) if int(mask[i // 32]) >> (i % 32) & 1}


def adversary(view: SequenceView, rng: random.Random) -> list[int]:
    """Any ids at all, more of them than the structure can take."""
    return [rng.randrange(len(PIECES)) for _ in range(view.max_draft_tokens)]


def toy_oracle(toy: Toy = TOY) -> Guess:
    """The target's most likely continuation, whatever the structure allows."""

    def guess(view: SequenceView, rng: random.Random) -> list[int]:
        ids = list(view.ids)
        for _ in range(view.max_draft_tokens):
            ids.append(int(toy.logits_after(ids).argmax()))
        return ids[len(view.ids) :]

    return guess
