"""What an answer must look like, checked for shape and size only. Knows no grammar library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How `Structure.text` is to be read; the values are StructuredOutput's field names."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class Structure:
    """One structure; equal ones share a compiled grammar.

    `text` is a JSON schema, a regular expression, a JSON array of strings (choice), a grammar in
    EBNF, a structural tag as JSON, or empty (JSON object). `compact` JSON has no whitespace but
    one space behind each comma and colon; `closed` objects have only properties that the schema
    names.
    """

    kind: Kind
    text: str = ""
    compact: bool = False
    closed: bool = False


@dataclass(frozen=True, slots=True)
class AskedStructure:
    """A structure of one answer, which those of `stop_ids` that have no text may end, too."""

    structure: Structure
    stop_ids: tuple[int, ...] = ()


class HopelessStructureError(Exception):
    """No grammar can be made of a structure, or none that anything matches; says why."""
