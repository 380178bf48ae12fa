"""docs/configuration.md: it is made of the tables, and what it says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.config import SpeculativeConfig
from outrider.configuration_page import page
from outrider.errors import InputError
from outrider.speculative_keys import KEYS
from outrider.speculative_names import METHODS
from outrider.speculative_options import parse_speculative_config

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
# Key, type, default, rule, methods, status.
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in page().splitlines()
    if line.startswith("| `") and line.count(" | ") == 5
]


def test_the_page_is_made_of_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs` and commit the result"


def test_the_pages_it_points_to_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page())
    assert links
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []


def test_it_has_a_row_for_every_key() -> None:
    assert [row[0].strip("`") for row in ROWS] == sorted(KEYS, key=list(KEYS).index)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_the_status_is_what_the_parser_does(row: list[str]) -> None:
    key, default, methods, status = row[0].strip("`"), row[2], row[4], row[5]
    assert (status == "works") == (key in SpeculativeConfig.model_fields)
    if status != "works":
        assert status.startswith("refused: ")
        with pytest.raises(InputError, match=key):
            parse_speculative_config({"method": "suffix", key: 1})
        return
    assert {name.strip("`") for name in methods.split(", ")} == set(KEYS[key].methods) & {*METHODS}
    if default.startswith("`") and "," not in default:
        (config,) = parse_speculative_config({"method": "suffix"})
        if re.fullmatch(r"`[\d.]+`", default):
            assert str(getattr(config, key)) == default.strip("`")


def test_its_examples_are_allowed() -> None:
    import json

    import yaml

    (block,) = re.findall(r"```json\n(.*?)```", page(), re.DOTALL)
    assert len(parse_speculative_config(json.loads(block))) == 2
    (command,) = re.findall(r"-sc '(.*)'", page())
    assert parse_speculative_config(json.loads(command))[0].prompt_lookup_max == 4
    (text,) = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    assert parse_speculative_config(yaml.safe_load(text)["speculative-config"])
