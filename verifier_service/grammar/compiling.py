"""From a structure to a compiled grammar: xgrammar's calls and its complaints in our words.

Knows what each kind of structure means; knows no limits of time or size (trial.py does).
"""

from __future__ import annotations

import json
import re
from typing import Any

from xgrammar import (
    CompiledGrammar,
    GrammarCompiler,
    StructuralTagItem,
)

from verifier_service.grammar.structure import HopelessStructureError, Kind, Structure
from verifier_service.grammar.vocabulary import Vocabulary

# A time, a place in the library's sources, and the condition that it found false.
_NOISE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: |Check failed: \(.*?\) is false: ")
_MAX_REASON = 300


def new_compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    """A compiler for one vocabulary. It keeps nothing: `Grammars` does, within bounds."""
    return GrammarCompiler(vocabulary.info(), max_threads=1, cache_enabled=False)


def compile_structure(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    """Raises HopelessStructureError where no grammar can be made of it.

    May take any time and memory, and lets other threads run meanwhile.
    """
    try:
        return _COMPILE[structure.kind](compiler, structure)
    except (RuntimeError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise HopelessStructureError(_in_our_words(error)) from error


def _json_schema(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    return compiler.compile_json_schema(
        structure.text, any_whitespace=not structure.compact, strict_mode=structure.closed
    )


def _json_object(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    return compiler.compile_json_schema(
        '{"type": "object"}', any_whitespace=not structure.compact, strict_mode=False
    )


def _regex(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    misplaced = misplaced_anchor(structure.text)
    if misplaced is not None:
        raise HopelessStructureError(
            f"{structure.text[misplaced]!r} at position {misplaced + 1} is only allowed at the "
            "regular expression's edge, where it changes nothing"
        )
    return compiler.compile_regex(structure.text)


def _choice(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    # JSON's escapes are EBNF's, but for pairs of surrogates, which are not made here.
    strings = (json.dumps(text, ensure_ascii=False) for text in json.loads(structure.text))
    return compiler.compile_grammar("root ::= " + " | ".join(strings))


def _grammar(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    return compiler.compile_grammar(structure.text)


def _structural_tag(compiler: GrammarCompiler, structure: Structure) -> CompiledGrammar:
    tag: Any = json.loads(structure.text)
    if not isinstance(tag, dict) or "structures" not in tag:
        return compiler.compile_structural_tag(structure.text)
    # The form that vLLM took first: tags and triggers, with any text around them.
    tags = [
        StructuralTagItem(begin=item["begin"], schema=json.dumps(item["schema"]), end=item["end"])
        for item in _legacy(tag, "structures", dict)
        if all(key in item for key in ("begin", "schema", "end"))
    ]
    if len(tags) != len(tag["structures"]):
        raise HopelessStructureError("each of structures needs begin, schema and end")
    return compiler.compile_structural_tag(tags, _legacy(tag, "triggers", str))


def _legacy(tag: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = tag.get(name)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise HopelessStructureError(f"{name} must be a list of {kind.__name__}s")
    return values


_COMPILE = {
    Kind.JSON_SCHEMA: _json_schema,
    Kind.JSON_OBJECT: _json_object,
    Kind.REGEX: _regex,
    Kind.CHOICE: _choice,
    Kind.GRAMMAR: _grammar,
    Kind.STRUCTURAL_TAG: _structural_tag,
}


def misplaced_anchor(pattern: str) -> int | None:
    """Index of the first `^` or `$` that is not at the pattern's edge, which xgrammar ignores."""
    inside = False
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 1
        elif inside:
            inside = character != "]"
        elif character == "[":
            inside = True
        elif (character == "^" and index > 0) or (character == "$" and index < len(pattern) - 1):
            return index
        index += 1
    return None


def _in_our_words(error: Exception) -> str:
    text = " ".join(_NOISE.sub("", str(error)).split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 1]}…"
