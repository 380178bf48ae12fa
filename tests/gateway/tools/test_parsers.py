"""Each notation: what is a call, what is content, and that cuts in the stream change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tools.arrays import ArrayParser
from gateway.tools.definitions import ChoiceMode, NamedChoice, Tool
from gateway.tools.hermes import HermesParser
from gateway.tools.llama3_json import Llama3JsonParser
from gateway.tools.mistral import MistralParser
from gateway.tools.named import NamedParser
from gateway.tools.parsers import Notation, new_call_id, parser_of
from tests.gateway.tools.folding import NAMES, MakeParser, cuts, in_pieces, texts_of, whole

HERMES: Final = texts_of(
    "<tool_call>", "</tool_call>", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
)
LLAMA: Final = texts_of("<|python_tag|>", "; ")
MISTRAL: Final = texts_of(
    "[TOOL_CALLS]", "[TOOL_CALLS][", "[ARGS]", "[CALL_ID]ab12", "f", "get_weather", '{"a": 1}'
)
ARRAY: Final = texts_of(
    '[{"name": "f", "parameters": {"a": "b"}}', ', {"name": "f", "parameters": {}}]'
)


def hermes() -> HermesParser:
    return HermesParser(NAMES)


def llama() -> Llama3JsonParser:
    return Llama3JsonParser(NAMES)


def mistral() -> MistralParser:
    return MistralParser(NAMES)


def array() -> ArrayParser:
    return ArrayParser(NAMES)


def named() -> NamedParser:
    return NamedParser("f")


def check_cuts(make: MakeParser, text: str, pieces: Sequence[str]) -> None:
    expected = whole(make, text)
    assert in_pieces(make, list(text)) == expected
    assert in_pieces(make, pieces) == expected
    # Nothing is lost: without calls all text is content, and a call's notation has no such letters.
    assert "".join(letters(item[-1]) for item in expected) == letters(text)
    if all(kind == "text" for kind, *_ in expected):
        assert "".join(item[1] for item in expected) == text


def letters(text: str) -> str:
    return "".join(c for c in text if c in "é東🚀")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_hermes_reads_any_cut_alike(data: st.DataObject) -> None:
    text = data.draw(HERMES)
    check_cuts(hermes, text, data.draw(cuts(text)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_llama_reads_any_cut_alike(data: st.DataObject) -> None:
    text = data.draw(LLAMA)
    check_cuts(llama, text, data.draw(cuts(text)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mistral_reads_any_cut_alike(data: st.DataObject) -> None:
    text = data.draw(MISTRAL)
    check_cuts(mistral, text, data.draw(cuts(text)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_array_reads_any_cut_alike(data: st.DataObject) -> None:
    text = data.draw(ARRAY)
    check_cuts(array, text, data.draw(cuts(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello\n", [("text", "Hello\n")]),
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
            [("call", "f", '{"a": 1}')],
        ),
        (
            'I look.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "get_weather", "arguments": {"city": "}"}}</tool_call>\nDone.\n',
            [
                ("text", "I look."),
                ("call", "f", "{}"),
                ("call", "get_weather", '{"city": "}"}'),
                ("text", "\nDone.\n"),
            ],
        ),
        # Hermes 2's own order; other keys beside; no arguments at all; no end tag.
        (
            '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
            [("call", "f", '{"a": 1}')],
        ),
        (
            '<tool_call>{"id": 7, "na\\u006de": "f", "arguments": {}, "x": [null]}</tool_call>',
            [("call", "f", "{}")],
        ),
        ('<tool_call>{"name": "f"}</tool_call>', [("call", "f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', [("call", "f", '{"a": 1}')]),
        # A brace too few and one too many: the arguments are complete, so the call stands.
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>',
            [("call", "f", '{"a": 1}')],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {}}}</tool_call>',
            [("call", "f", "{}"), ("text", "}</tool_call>")],
        ),
        # No call: not JSON, not offered, arguments that are no object, a name twice.
        ("a <tool_call>b</tool_call>", [("text", "a <tool_call>b</tool_call>")]),
        (
            '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
            [("text", '<tool_call>{"name": "g", "arguments": {}}</tool_call>')],
        ),
        (
            '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
            [("text", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>')],
        ),
        (
            '<tool_call>{"name": "f", "name": "f"}',
            [("text", '<tool_call>{"name": "f", "name": "f"}')],
        ),
        ("<tool_call>", [("text", "<tool_call>")]),
        ("x <tool_ca", [("text", "x <tool_ca")]),
        (
            '<tool_call>no <tool_call>{"name": "f", "arguments": {}}</tool_call>',
            [("text", "<tool_call>no"), ("call", "f", "{}")],
        ),
        # It breaks behind its beginning: `raw` is everything, whoever told nothing yet shows it.
        (
            'ok <tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>',
            [
                ("text", "ok"),
                ("broken", "f", '{"a": ', ' <tool_call>{"name": "f", "arguments": {"a": '),
                ("text", "oops}}</tool_call>"),
            ],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1',
            [("broken", "f", '{"a": 1', '<tool_call>{"name": "f", "arguments": {"a": 1')],
        ),
    ],
)
def test_hermes(text: str, expected: list[tuple[str, ...]]) -> None:
    assert whole(hermes, text) == expected
    assert in_pieces(hermes, list(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [("call", "f", '{"a": 1}')]),
        ('\n<|python_tag|>{"name": "f", "parameters": {}}\n', [("call", "f", "{}")]),
        ('{"name": "f", "arguments": {}}', [("call", "f", "{}")]),
        (
            '{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"c": "x"}}',
            [("call", "f", "{}"), ("call", "get_weather", '{"c": "x"}')],
        ),
        ('{"answer": 42}', [("text", '{"answer": 42}')]),
        ('So: {"name": "f", "parameters": {}}', [("text", 'So: {"name": "f", "parameters": {}}')]),
        (
            'So: <|python_tag|>{"name": "f", "parameters": {}}',
            [("text", "So:"), ("call", "f", "{}")],
        ),
        ("<|python_tag|>print(1)", [("text", "<|python_tag|>print(1)")]),
        (
            '{"name": "f", "parameters": {}}; and',
            [("call", "f", "{}"), ("text", "; and")],
        ),
    ],
)
def test_llama3_json(text: str, expected: list[tuple[str, ...]]) -> None:
    assert whole(llama, text) == expected
    assert in_pieces(llama, list(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', [("call", "f", '{"a": 1}')]),
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]\n',
            [("call", "f", "{}"), ("call", "f", "{}")],
        ),
        (
            'Ok.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather{"city": "x"}',
            [("text", "Ok."), ("call", "f", '{"a": 1}'), ("call", "get_weather", '{"city": "x"}')],
        ),
        ('[TOOL_CALLS]f[CALL_ID]ab12[ARGS]{"a": 1}', [("call", "f", '{"a": 1}')]),
        ('[TOOL_CALLS]g[ARGS]{"a": 1}', [("text", '[TOOL_CALLS]g[ARGS]{"a": 1}')]),
        ("[TOOL_CALLS] no", [("text", "[TOOL_CALLS] no")]),
        ("[TOOL_CALLS][]", [("text", "[TOOL_CALLS][]")]),
        ("[TOOL_CALLS]" + "x" * 300, [("text", "[TOOL_CALLS]" + "x" * 300)]),
        ("[TOOL_CALLS]f[ARGS]", [("text", "[TOOL_CALLS]f[ARGS]")]),
        (
            '[TOOL_CALLS]f[ARGS]{"a": ',
            [("broken", "f", '{"a": ', '[TOOL_CALLS]f[ARGS]{"a": ')],
        ),
    ],
)
def test_mistral(text: str, expected: list[tuple[str, ...]]) -> None:
    assert whole(mistral, text) == expected
    assert in_pieces(mistral, list(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[ {"name": "f", "parameters": {"a": 1}},\n{"name": "f", "parameters": {}}]\n',
            [("call", "f", '{"a": 1}'), ("call", "f", "{}")],
        ),
        (
            '[{"name": "f", "parameters": {}}, {"name": "f", "par',
            [("call", "f", "{}"), ("text", ', {"name": "f", "par')],
        ),
        ("[", [("text", "[")]),
        ("no", [("text", "no")]),
    ],
)
def test_array(text: str, expected: list[tuple[str, ...]]) -> None:
    assert whole(array, text) == expected
    assert in_pieces(array, list(text)) == expected


def test_named_takes_the_whole_text_for_arguments() -> None:
    assert whole(named, '{"a": 1}') == [("call", "f", '{"a": 1}')]
    assert in_pieces(named, ["", '{"a"', "", ": 1}"]) == [("call", "f", '{"a": 1}')]
    assert whole(named, "") == [("call", "f", "")]


def test_arguments_are_told_as_they_come() -> None:
    parser = hermes()
    pieces = [
        '<tool_call>{"name": "f", "arguments": {"te',
        "xt",
        '": "a b',
        ' c"',
        "}}</tool_call>",
    ]
    told = [[str(getattr(event, "text", "")) for event in parser.push(p)] for p in pieces]
    assert ["".join(texts) for texts in told] == ['{"te', "xt", '": "a b', ' c"', "}"]


def test_the_choice_decides_who_reads() -> None:
    tools = [Tool("f")]
    for notation, kind in (
        (Notation.HERMES, HermesParser),
        (Notation.LLAMA3_JSON, Llama3JsonParser),
        (Notation.MISTRAL, MistralParser),
    ):
        assert type(parser_of(notation, tools, ChoiceMode.AUTO)) is kind
    assert type(parser_of(Notation.HERMES, tools, ChoiceMode.REQUIRED)) is ArrayParser
    assert type(parser_of(Notation.MISTRAL, tools, NamedChoice("f"))) is NamedParser
    with pytest.raises(ValueError, match="nothing to parse"):
        parser_of(Notation.HERMES, tools, ChoiceMode.NONE)


def test_call_ids() -> None:
    assert new_call_id(Notation.HERMES).startswith("chatcmpl-tool-")
    assert new_call_id(Notation.HERMES) != new_call_id(Notation.HERMES)
    mistrals = new_call_id(Notation.MISTRAL)
    assert len(mistrals) == 9
    assert mistrals.isalnum()
