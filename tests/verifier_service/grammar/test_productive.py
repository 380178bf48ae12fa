"""Grammars whose start symbol derives nothing finite."""

from __future__ import annotations

import pytest

from tests.verifier_service.grammar.toy_grammar import compiler
from verifier_service.grammar.productive import unproductive_start


def printed(ebnf: str) -> str:
    return str(compiler().compile_grammar(ebnf).grammar)


@pytest.mark.parametrize(
    ("ebnf", "hopeless"),
    [
        ('root ::= "a"', False),
        ('root ::= "a" root', True),
        ('root ::= "a" root | ""', False),
        ('root ::= root "b" | "a"', False),
        ('root ::= "a" x\nx ::= "b" x | "c" x', True),
        ('root ::= ("a" | x) y\nx ::= x "a"\ny ::= "c"', False),
        ('root ::= x*\nx ::= "a" x', False),
        ('root ::= x?\nx ::= "a" x', False),
        ('root ::= x+\nx ::= "a" x', True),
        ('root ::= x{0,3}\nx ::= "a" x', False),
        ('root ::= x{2,3000}\nx ::= "a" x', True),
        ('root ::= [a-c]{2,500} x\nx ::= "1" | x', False),
        ('root ::= "(" root ")" | "[" root "]"', True),
        ('root ::= "(" root ")" | "[" root "]" | "\\"(" | [\\]|(]', False),
    ],
)
def test_what_can_never_be_complete(ebnf: str, hopeless: bool) -> None:
    assert unproductive_start(printed(ebnf)) is hopeless


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root ::= (((\n",
        'root ::= TagDispatch(\n  ("<f", root),\n  loop=true\n)\n',
        "other ::= (other)\n",
        "root ::= ((root) ((root) | (x)))\nx ::= ((y) y (z | w))\n",
    ],
)
def test_what_is_not_understood_is_not_refused(text: str) -> None:
    assert not unproductive_start(text)
