"""A request that was answered in a gateway's last second is in its evidence, with its rounds."""

from __future__ import annotations

from pathlib import Path

from gateway.evidence import queries
from gateway.evidence.file import open_to_read
from gateway.evidence.settings import EvidenceSettings
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.interfaces.stack import MODEL, stack


async def test_the_last_request_is_kept(socket_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    address = f"unix:{socket_dir}/otlp.sock"
    async with stack(
        socket_dir,
        trace=TraceSettings(address, TraceLevel.DETAILED, content=True),
        gateway_options={"evidence": EvidenceSettings(listen=address, database=str(path))},
    ) as running:
        answer = await running.client.completions.create(
            model=MODEL,
            prompt="the cat",
            max_tokens=20,
            temperature=0,
            extra_body={"request_id": "last", "ignore_eos": True},
            extra_headers={"x-outrider-workload": "cats"},
        )
    with open_to_read(path) as connection:
        kept = queries.one_request(connection, "last")
    assert kept is not None
    assert kept.workload == "cats"
    assert kept.completion_tokens == 20
    assert sum(round_.emitted for round_ in kept.rounds) == 20
    texts = [text for round_ in kept.rounds for text in round_.emitted_texts or ()]
    assert "".join(texts) == answer.choices[0].text
