"""A process that is killed while it writes loses its last batch at most, and the file opens."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.evidence.file import EvidenceFile

# Writes batches for ever and names each one that is in the file.
WRITER = """
import sys
from pathlib import Path
from gateway.evidence.file import EvidenceFile
from gateway.evidence.records import RoundRecord
from tests.gateway.evidence.otlp import record

file = EvidenceFile(Path(sys.argv[1]), 2**20, 1e10)
batch = 0
while True:
    rounds = (RoundRecord(0, 1, 1, 1, 2),) * 20
    file.write([record({"a": [(1, 1)]}, workload=str(batch), rounds=rounds) for _ in range(20)])
    print(batch, flush=True)
    batch += 1
    if batch % 5 == 0:
        file.connection.execute("CHECKPOINT")
"""


@pytest.mark.parametrize("batches", [1, 7])
def test_what_was_written_is_there_after_a_kill(tmp_path: Path, batches: int) -> None:
    path = tmp_path / "e.duckdb"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as writer:
        assert writer.stdout is not None
        seen = [int(writer.stdout.readline()) for _ in range(batches)]
        writer.send_signal(signal.SIGKILL)
        seen += [int(line) for line in writer.stdout]
    file = EvidenceFile(path, 2**30, 1e10)
    try:
        rows = file.connection.execute(
            "SELECT workload::INT, count(*) FROM requests GROUP BY 1 ORDER BY 1"
        ).fetchall()
        # The last one may be in the file without having been named.
        assert rows[: len(seen)] == [(batch, 20) for batch in seen]
        assert rows[len(seen) :] in ([], [(len(seen), 20)])
        for table, each in (("shares", 1), ("rounds", 20)):
            (found,) = file.connection.execute(f"SELECT count(*) FROM {table}").fetchall()
            assert found == (sum(count for _, count in rows) * each,)
    finally:
        file.close()
