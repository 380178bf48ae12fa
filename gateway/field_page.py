"""Writes docs/request-fields.md: `python -m gateway.field_page docs/request-fields.md`.

Knows Markdown; what it says is field_table.py's.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from gateway.field_table import Row, Status, rows

_HEAD = """\
# Request fields

What becomes of every field of `POST /v1/completions` and `POST /v1/chat/completions` that OpenAI's
or vLLM's server knows. `make docs` writes this page from `gateway/field_table.py`; a test compares
them.

- **works**: checked, and done as the last column says.
- **refused**: a 400 that names the field, unless its value asks for nothing (what stands behind
  "unless").
- **ignored**: taken with any value; the answer lacks nothing by it.
- **—**: not a field of this endpoint; ignored, as is every name that nobody knows (a line in the
  debug log tells which).

`null` always means the same as leaving a field out. Where OpenAI and vLLM differ, this is vLLM's
way. A sampling field that is left out takes the model's `generation_config.json`, then the neutral
value. gRPC clients have the same parameters under the same names ([verifier.md](verifier.md)).
"""

_TAIL = """
## Tokenize and detokenize

`POST /tokenize` takes either `prompt` (a string) or `messages`, and `model`, `add_special_tokens`,
`return_token_strs`; with messages also `tools`, `documents`, `add_generation_prompt`,
`continue_final_message`, `chat_template` and `chat_template_kwargs`. It answers with `count`,
`max_model_len`, `tokens`, and `token_strs` (null unless asked for). `POST /detokenize` takes
`tokens` and `model` and answers with `prompt`, special tokens included; with `return_token_texts`
also with `token_texts`, the text of each id by itself.

There is no `/tokenizer_info`: vLLM has it behind a switch, and it would show the model's files to
every client. Other vLLM routes (embeddings, scoring, audio, `/v1/responses`, `/v1/messages`,
adapters, development routes) do not exist; they answer 404.
"""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for section, members in groupby(rows(), key=lambda row: row.section):
        parts.append(f"\n## {section}\n\n| field | completions | chat | |\n|---|---|---|---|\n")
        parts.extend(_line(row) for row in members)
    return "".join([*parts, _TAIL])


def _line(row: Row) -> str:
    note = row.note
    if Status.REFUSED in (row.completions, row.chat):
        note = f"unless {', '.join(f'`{_shown(value)}`' for value in row.neutral)}; {note}"
    return f"| `{row.name}` | {row.completions.value} | {row.chat.value} | {note} |\n"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Write the page to the file named on the command line."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
