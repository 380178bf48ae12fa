"""The example of docs/proposers.md works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.proposer_service.verifier import opening, propose, step

PAGE = Path(__file__).parents[2] / "docs" / "proposers.md"


async def test_the_proposer_of_the_page_serves(socket_dir: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    running = await names["serve"](f"unix:{socket_dir}/s.sock")
    try:
        async with propose(running.address) as stream:
            assert (await stream.greet()).name == "stutter"
            (block,) = (await stream.ask(step(1, opening(1, [4, 5, 6], k=3)))).blocks
            assert list(block.token_ids) == [6, 6, 6]
    finally:
        await running.stop()
