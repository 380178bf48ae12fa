"""Writes docs/configuration.md: `python -m outrider.configuration_page docs/configuration.md`.

Knows Markdown; what it says of keys is speculative_keys.py's, of names speculative_names.py's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from outrider import speculative_names as names
from outrider.config import DEFAULT_SPECULATION, SpeculativeConfig
from outrider.speculative_keys import KEYS, Key
from outrider.speculative_unserved import UnservedKeys

_HEAD = """\
# Speculative configuration

Every key of vLLM's speculative config (0.29, and what 0.33 adds), under the same name. `make docs`
writes this page from the tables that check the values; a test compares them.

## How it is written

On the command line a JSON object, or a list of objects for several proposers:

```bash
outrider serve MODEL -sc '{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4}'
```

`-sc` is short for `--speculative-config`. `--spec-method`, `--spec-model` and `--spec-tokens` set
`method`, `model` and `num_speculative_tokens` of one object; a key is given once, there or here. In
a YAML file (`--config FILE`) it is a mapping, or a list of mappings; JSON escaped into a string is
refused:

```yaml
model: smollm2-135m
speculative-config:
  method: ngram
  num-speculative-tokens: 8
```

Dashes in keys are as good as underscores, and `null` is the same as leaving a key out. All of it is
checked before a model is looked for: what is wrong ends the command with exit code 2 and one line
that names the key, its value and what is allowed. When it starts, a line for each proposer states
what was resolved: `SpeculativeConfig(method='ngram', num_speculative_tokens=8, …)`.

`outrider serve` starts a proposer for each object; without a config it starts:

```json
{DEFAULT}
```

A model that drafts is written like this, alone or in a list with others:

```bash
outrider serve TARGET --spec-method draft_model --spec-model DRAFT --spec-tokens 4
```

It is found, and held against the target's tokenizer and limits, before anything is loaded. Its
proposer starts first, on the target's device and with its `--dtype` (another device:
`--draft-device`), with 2 GiB for its cache of keys and values (`--draft-kv-cache-memory-bytes`);
then the verifier, whose cache takes what is left. It is no longer than the target
(`max_model_len`), and uncompiled where that is (`enforce_eager`), unless told otherwise. A step
waits for drafts up to 1000 ms then, not 10 (`--draft-deadline-ms`), since a draft model runs once
for each draft; a proposer that has always answered far sooner is waited for only eight times as
long as it ever took lately. Whether it pays: [choosing.md](choosing.md#a-draft-model).

`--no-speculation` starts none. `outrider verifier` takes the same options and starts nothing: it
attaches to running proposers, one `--proposer ADDRESS` for each object, in the same order. A
proposer of another method, or one that runs with another value of an option that is written here,
is refused with a line that names both, and asked again every 30 s; the verifier decodes with the
others, or plainly. The draft model's name is not compared, since one model has other names on other
machines: its tokenizer is. Without a config any proposer is taken that passes the handshake.
`outrider proposer -sc` takes one object; keys that are the verifier's may stand in it, and a line
names them.
"""

_TAIL = """
The answer's law is the target's own under every rule that works: [exactness.md](exactness.md). How
many of the drafts are verified: [controller.md](controller.md). The methods:
[proposers.md](proposers.md), [draft-model.md](draft-model.md).
"""


def page() -> str:
    """The whole page, in Markdown."""
    default = "[\n" + ",\n".join(f"  {_as_json(config)}" for config in DEFAULT_SPECULATION) + "\n]"
    return "".join([_HEAD.replace("{DEFAULT}", default), *_keys(), *_methods(), *_others(), _TAIL])


def _keys() -> Iterable[str]:
    served = [row for row in KEYS.values() if row.name in SpeculativeConfig.model_fields]
    refused = [row for row in KEYS.values() if row.name not in SpeculativeConfig.model_fields]
    header = "| key | type | default | rule | methods | status |\n|---|---|---|---|---|---|\n"
    yield "\n## Keys that work\n\n"
    yield "A key of another method than the chosen one is an error, not silence.\n\n"
    yield header
    for row in served:
        default = SpeculativeConfig.model_fields[row.name].default
        yield _line(row, default, _served_methods(row), "works")
    yield "\n## Keys that are refused\n\n"
    yield "A value that breaks the rule is refused for that; any other because of what the last\n"
    yield "column says. Defaults are vLLM's.\n\n"
    yield header
    for row in refused:
        status = f"refused: {row.refused or 'its methods are not served yet'}"
        if row.neutral is not None:
            status = f"{status}; `{json.dumps(row.neutral)}` is taken with {_served(row)}"
        default = UnservedKeys.model_fields[row.name].default
        yield _line(row, default, row.methods, status)


def _served_methods(row: Key) -> list[str]:
    return [method for method in row.methods if method in names.METHODS]


def _served(row: Key) -> str:
    return ", ".join(f"`{method}`" for method in _served_methods(row))


def _line(row: Key, default: object, methods: Iterable[str], status: str) -> str:
    shown = row.default or ("—" if default is None else f"`{json.dumps(default)}`")
    owners = ", ".join(f"`{method}`" for method in methods)
    return f"| `{row.name}` | {row.type} | {shown} | {row.rule} | {owners} | {status} |\n"


def _methods() -> Iterable[str]:
    yield "\n## Methods\n\n"
    yield "Without `method`, `model` decides as in vLLM: a dotted Python name is `custom_class`,\n"
    yield "`ngram` or `[ngram]` is `ngram`, a name that holds `eagle-`, `eagle3`, `dflash` or\n"
    yield "`dspark` is that method (looked for in this order), then a folder's `config.json`\n"
    yield "decides, and else it is `draft_model`.\n\n| method | status |\n|---|---|\n"
    for method in names.METHODS:
        yield f"| `{method}` | works |\n"
    for method, why in names.UNSERVED_METHODS.items():
        yield f"| `{method}` | not served yet{f': {why}' if why else ''} |\n"
    for nickname, method in names.NICKNAMES.items():
        yield f"| `{nickname}` | not served yet: `{method}` with `parallel_drafting` |\n"
    aliases = ", ".join(f"`{alias}`" for alias in sorted(names.MTP_ALIASES))
    yield f"\nOld names of `mtp`, not served yet either: {aliases}.\n"


def _others() -> Iterable[str]:
    yield "\n## Keys that are no user's to set here\n\n| key | refused with |\n|---|---|\n"
    for key in sorted(names.SAMPLING_KEYS):
        yield f"| `{key}` | a sampling parameter: send it with the request |\n"
    for key in sorted(names.INTERNAL_KEYS):
        yield f"| `{key}` | internal: the server fills it by itself |\n"
    for key, why in names.REPLACED_KEYS.items():
        yield f"| `{key}` | {why} |\n"
    yield "\nAny other key is unknown, and refused with the nearest known one.\n"


def _as_json(config: SpeculativeConfig) -> str:
    return json.dumps(config.model_dump(exclude_unset=True))


def main() -> None:
    """Write the page to the file named on the command line."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
