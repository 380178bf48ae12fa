"""Structures become grammars that admit exactly what they say, or say why they cannot."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xgrammar import CompiledGrammar, GrammarCompiler

from verifier_service.grammar.compiling import (
    compile_structure,
    misplaced_anchor,
    new_compiler,
)
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.prospects import check_prospects
from verifier_service.grammar.structure import HopelessStructureError, Kind, Structure
from verifier_service.grammar.vocabulary import Vocabulary

STOP = 256
BYTES = Vocabulary((*(bytes([i]) for i in range(256)), b""), (STOP,))


@cache
def compiler() -> GrammarCompiler:
    return new_compiler(BYTES)


@cache
def compiled(structure: Structure) -> CompiledGrammar:
    return compile_structure(compiler(), structure)


def matches(structure: Structure, text: str) -> bool:
    """Whether the text is a whole answer."""
    ids = [*text.encode(), STOP]
    return GrammarConstraint(compiled(structure)).admitted(ids) == len(ids)


def schema(value: Any, **flags: bool) -> Structure:
    return Structure(Kind.JSON_SCHEMA, json.dumps(value), **flags)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("structure", "text", "expected"),
    [
        (schema(PERSON), '{"name": "Ada", "age": 36}', True),
        (schema(PERSON), '{ "name" :\n"Ada" }', True),
        (schema(PERSON), '{"age": 36}', False),
        (schema(PERSON), '{"name": "Ada", "more": [1]}', True),
        (schema(PERSON, closed=True), '{"name": "Ada", "more": [1]}', False),
        (schema(PERSON, compact=True), '{"name": "Ada", "age": 36}', True),
        (schema(PERSON, compact=True), '{"name":  "Ada"}', False),
        (schema({"enum": ["a", 1, None]}), "null", True),
        (schema({"enum": ["a", 1, None]}), '"b"', False),
        (Structure(Kind.JSON_OBJECT), '{"a": {"b": [1, null, true]}}', True),
        (Structure(Kind.JSON_OBJECT), "[1]", False),
        (Structure(Kind.JSON_OBJECT, compact=True), '{"a":   1}', False),
        (Structure(Kind.REGEX, r"\d{3}-\d{4}"), "555-1234", True),
        (Structure(Kind.REGEX, r"\d{3}-\d{4}"), "555-12345", False),
        (Structure(Kind.REGEX, "^(a|bc)+$"), "abca", True),
        (Structure(Kind.REGEX, "[^a]*é"), "xyé", True),
        (Structure(Kind.GRAMMAR, 'root ::= "a" | root "b"'), "abbb", True),
        (Structure(Kind.GRAMMAR, 'root ::= "a" | root "b"'), "ba", False),
        (Structure(Kind.GRAMMAR, 'root ::= "(" root ")" | ""'), "((()))", True),
        (Structure(Kind.GRAMMAR, 'root ::= "(" root ")" | ""'), "((())", False),
    ],
)
def test_what_a_structure_admits(structure: Structure, text: str, expected: bool) -> None:
    assert matches(structure, text) is expected


TAG = {"begin": "<n>", "end": "</n>"}
LEGACY = {
    "type": "structural_tag",
    "structures": [{**TAG, "schema": {"type": "integer"}}],
    "triggers": ["<n"],
}
NEW = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<n"],
        "tags": [{**TAG, "content": {"type": "json_schema", "json_schema": {"type": "integer"}}}],
    },
}


@pytest.mark.parametrize("tag", [LEGACY, NEW], ids=["legacy", "new"])
def test_structural_tags_of_both_forms(tag: dict[str, Any]) -> None:
    structure = Structure(Kind.STRUCTURAL_TAG, json.dumps(tag))
    assert matches(structure, "free text <n>12</n> and more")
    assert not matches(structure, "free text <n>twelve</n>")


@given(
    choices=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1),
    other=st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_a_choice_is_one_of_its_strings_whatever_they_contain(
    choices: list[str], other: str
) -> None:
    structure = Structure(Kind.CHOICE, json.dumps(choices))
    assert all(matches(structure, choice) for choice in choices)
    assert matches(structure, other) is (other in choices)


@given(text=st.text("abc", max_size=6))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("pattern", ["a*b?c+", "(a|bc){1,3}", "[^a]+", "a(b|c)*a|b"])
def test_a_regular_expression_is_the_whole_answer(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text) is not None
    assert matches(Structure(Kind.REGEX, pattern), text) is expected


HOPELESS = [
    (schema({"type": "nope"}), 'Unsupported type "nope"'),
    (schema({"$ref": "#/definitions/x"}), "definitions"),
    (schema({"$ref": "#"}), "Circular"),
    (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum greater than maximum"),
    (schema(False), "cannot accept any value"),
    (schema({"type": "string", "pattern": "("}), "parenthesis"),
    (
        schema(
            {
                "$defs": {
                    "n": {
                        "type": "object",
                        "properties": {"next": {"$ref": "#/$defs/n"}},
                        "required": ["next"],
                    }
                },
                "$ref": "#/$defs/n",
            }
        ),
        "nothing that ever ends",
    ),
    (Structure(Kind.REGEX, "(a"), "The parenthesis is not closed"),
    (Structure(Kind.REGEX, "[a-"), "Unclosed"),
    (Structure(Kind.REGEX, r"(a)\1"), "Backreference"),
    (Structure(Kind.REGEX, "(?=a)b"), "Lookahead"),
    (Structure(Kind.REGEX, "a^b"), "'^' at position 2 is only allowed"),
    (Structure(Kind.REGEX, "a$b"), "'$' at position 2 is only allowed"),
    (Structure(Kind.REGEX, "a\0"), "null"),
    (Structure(Kind.REGEX, "(" * 100_000 + ")" * 100_000), "Nest layer"),
    (Structure(Kind.GRAMMAR, 'root ::= "a" x'), 'Rule "x" is not defined'),
    (Structure(Kind.GRAMMAR, 'start ::= "a"'), "root rule"),
    (Structure(Kind.GRAMMAR, 'root ::= root "a"'), "nothing that ever ends"),
    (Structure(Kind.GRAMMAR, "root ::= root"), "nothing that ever ends"),
    (Structure(Kind.GRAMMAR, 'root ::= "a" root'), "nothing that ever ends"),
    (Structure(Kind.GRAMMAR, "root ::= ("), "EBNF parser error"),
    (Structure(Kind.STRUCTURAL_TAG, "{}"), "Invalid structural tag"),
    (Structure(Kind.STRUCTURAL_TAG, '{"structures": 1}'), "structures must be a list"),
    (
        Structure(Kind.STRUCTURAL_TAG, '{"structures": [{"begin": "<"}], "triggers": ["<"]}'),
        "begin, schema and end",
    ),
    (Structure(Kind.STRUCTURAL_TAG, '{"structures": [], "triggers": "<"}'), "triggers must be"),
]


@pytest.mark.parametrize(("structure", "says"), HOPELESS)
def test_a_hopeless_structure_says_why(structure: Structure, says: str) -> None:
    with pytest.raises(HopelessStructureError) as caught:
        check_prospects(compile_structure(compiler(), structure))
    reason = str(caught.value)
    assert says in reason
    assert len(reason) <= 300 and "\n" not in reason and ".cc:" not in reason


def test_a_place_where_no_token_fits_is_found() -> None:
    """The vocabulary has no byte of é: the grammar is fine, this model cannot write it."""
    small = new_compiler(Vocabulary((b"a", b""), (1,)))
    grammar = compile_structure(small, Structure(Kind.REGEX, "aé"))
    with pytest.raises(HopelessStructureError, match="after 1 tokens nothing of this model's"):
        check_prospects(grammar)


@pytest.mark.parametrize(
    ("pattern", "index"),
    [("^a$", None), (r"a\^b\$c", None), ("[$^]a[^$]", None), ("a^", 1), ("$a", 0), ("a|^b", 2)],
)
def test_anchors_in_the_middle(pattern: str, index: int | None) -> None:
    assert misplaced_anchor(pattern) == index
