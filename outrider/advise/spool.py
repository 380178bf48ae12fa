"""The traffic's token ids on disk, so that a long sample takes no memory however often it is read.

Knows ids and what decides how they are replayed; knows no text and no proposer.
"""

from __future__ import annotations

import struct
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

# Ids of prompt and output, bytes of the salt, max_tokens (0: unlimited), whether it finished, and
# whether its prompt was cached.
_HEADER = struct.Struct("<IIII??")


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One request and its recorded answer, as token ids.

    `max_tokens` None: nothing is known of a limit. Requests of one `salt` may become each other's
    drafts. Not `finished`: the client left, so the output shapes no later drafts. `cached`: all of
    the prompt but its last id was in the verifier's cache (or is nothing), so that already the
    first token came from a round that drafts may be part of.
    """

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    max_tokens: int | None = None
    salt: str = ""
    finished: bool = True
    cached: bool = False


class Spool:
    """A temporary file of requests, in the order in which they were added. A context."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
        self._count = 0
        self.prompt_tokens = 0
        self.output_tokens = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, request: TrafficRequest) -> None:
        """Append one. Raises OverflowError for an id that is no 32-bit integer."""
        salt = request.salt.encode("utf-8", "surrogatepass")
        self._file.seek(0, 2)
        self._file.write(
            _HEADER.pack(
                len(request.prompt_ids),
                len(request.output_ids),
                len(salt),
                request.max_tokens or 0,
                request.finished,
                request.cached,
            )
        )
        self._file.write(array("i", request.prompt_ids).tobytes())
        self._file.write(array("i", request.output_ids).tobytes())
        self._file.write(salt)
        self._count += 1
        self.prompt_tokens += len(request.prompt_ids)
        self.output_tokens += len(request.output_ids)

    def __iter__(self) -> Iterator[TrafficRequest]:
        """All requests; one pass at a time, and nothing is added meanwhile."""
        self._file.seek(0)
        for _ in range(self._count):
            fields = _HEADER.unpack(self._file.read(_HEADER.size))
            prompt, output, salt, limit, finished, cached = fields
            yield TrafficRequest(
                prompt_ids=self._ids(prompt),
                output_ids=self._ids(output),
                max_tokens=limit or None,
                salt=self._file.read(salt).decode("utf-8", "surrogatepass"),
                finished=finished,
                cached=cached,
            )

    def _ids(self, count: int) -> list[int]:
        ids = array("i")
        ids.frombytes(self._file.read(count * ids.itemsize))
        return ids.tolist()
