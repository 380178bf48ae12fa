"""The recording of a verifier's rounds: what it holds, and its JSON lines.

Knows numbers of tokens, positions and seconds; neither prompts nor ids of tokens or requests are
ever in it. One JSON object a line: a header, then the steps in order. `docs/controller.md` has
the format's description.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

FORMAT, VERSION = "outrider-rounds", 1


class RecordingError(ValueError):
    """A file is no recording, or one of its lines is damaged."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the verifier measured before it served: see `CostTable.from_profile`.

    `profile` are seconds of a step by its number of query tokens, over `context` tokens;
    `attention` the seconds for each context token, and each (context token, row).
    """

    num_speculative_tokens: int
    profile: Mapping[int, float]
    context: int = 0
    attention: tuple[float, float] = (0.0, 0.0)
    device: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """One proposer's block: of `offered` drafts the first `right` would have been accepted.

    `offered` is cut to what could be compared with what was emitted later.
    """

    proposer: str
    offered: int
    match_length: int
    right: int
    confidences: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """One sequence's round: `position` is the number of its ids before it, the prompt's included.

    `limit` is the most drafts that might be verified, `ask` how many were asked for, `verified`
    how many of the offer at index `used` (-1: none) were, and `accepted` of them.
    """

    sequence: int
    position: int
    limit: int
    ask: int
    greedy: bool
    emitted: int
    verified: int = 0
    accepted: int = 0
    used: int = -1
    offers: tuple[Offer, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: `seconds` of its forward, of `around` it, and of these `waited` for drafts.

    `rows` are query tokens, `context` the sum of context lengths, `prefill` the rows that were a
    prompt's.
    """

    seconds: float
    around: float
    waited: float
    rows: int
    context: int
    prefill: int
    rounds: tuple[RecordedRound, ...]

    @property
    def asked(self) -> bool:
        return any(part.ask > 0 for part in self.rounds)


@dataclass(frozen=True, slots=True)
class Recording:
    """A header and its steps, in the order in which they ran."""

    header: Header
    steps: tuple[RecordedStep, ...] = field(default_factory=tuple)


def read_recording(path: Path) -> Recording:
    """Raises RecordingError with the line's number, and OSError where the file cannot be read."""
    with open_lines(path, "r") as file:
        header: Header | None = None
        steps: list[RecordedStep] = []
        try:
            for number, line in enumerate(file, 1):
                try:
                    value = json.loads(line)
                    if header is None:
                        header = _header(value)
                    else:
                        steps.append(_step(value))
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    raise RecordingError(f"{path}, line {number}: {_told(error)}") from error
        except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}: {error}") from error
    if header is None:
        raise RecordingError(f"{path}: the file is empty")
    return Recording(header, tuple(steps))


def write_recording(path: Path, recording: Recording) -> None:
    """A whole recording at once; compressed where the name ends in .gz."""
    with open_lines(path, "w") as file:
        file.writelines(recording_lines(recording))


def recording_lines(recording: Recording) -> Iterator[str]:
    """The lines of a recording, each with its line end."""
    yield header_line(recording.header)
    for step in recording.steps:
        yield step_line(step)


def header_line(header: Header) -> str:
    return _line(
        {
            "format": FORMAT,
            "version": VERSION,
            "num_speculative_tokens": header.num_speculative_tokens,
            "profile_ms": {str(n): _ms(s) for n, s in header.profile.items()},
            "context": header.context,
            "attention": list(header.attention),
            "device": header.device,
        }
    )


def step_line(step: RecordedStep) -> str:
    return _line(
        {
            "ms": _ms(step.seconds),
            "around_ms": _ms(step.around),
            "wait_ms": _ms(step.waited),
            "rows": step.rows,
            "context": step.context,
            "prefill": step.prefill,
            "rounds": [
                {
                    "sequence": part.sequence,
                    "at": part.position,
                    "limit": part.limit,
                    "ask": part.ask,
                    "greedy": part.greedy,
                    "emitted": part.emitted,
                    "verified": part.verified,
                    "accepted": part.accepted,
                    "used": part.used,
                    "offers": [_offer_value(offer) for offer in part.offers],
                }
                for part in step.rounds
            ],
        }
    )


def _offer_value(offer: Offer) -> list[Any]:
    value: list[Any] = [offer.proposer, offer.offered, offer.match_length, offer.right]
    if offer.confidences:
        value.append([round(confidence, 3) for confidence in offer.confidences])
    return value


def _header(value: Any) -> Header:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise RecordingError("this is no recording of rounds: its first line has no such header")
    if value["version"] != VERSION:
        raise RecordingError(f"version {value['version']!r} of the format; this reads {VERSION}")
    per_context, per_row = value["attention"]
    return Header(
        num_speculative_tokens=int(value["num_speculative_tokens"]),
        profile={int(n): ms / 1e3 for n, ms in value["profile_ms"].items()},
        context=int(value["context"]),
        attention=(float(per_context), float(per_row)),
        device=str(value.get("device", "")),
    )


def _step(value: Any) -> RecordedStep:
    return RecordedStep(
        seconds=value["ms"] / 1e3,
        around=value["around_ms"] / 1e3,
        waited=value["wait_ms"] / 1e3,
        rows=value["rows"],
        context=value["context"],
        prefill=value["prefill"],
        rounds=tuple(_rounds(value["rounds"])),
    )


def _rounds(values: Iterable[Any]) -> Iterator[RecordedRound]:
    for value in values:
        yield RecordedRound(
            sequence=value["sequence"],
            position=value["at"],
            limit=value["limit"],
            ask=value["ask"],
            greedy=bool(value["greedy"]),
            emitted=value["emitted"],
            verified=value["verified"],
            accepted=value["accepted"],
            used=value["used"],
            offers=tuple(_offer(offer) for offer in value["offers"]),
        )


def _offer(value: Any) -> Offer:
    proposer, offered, match_length, right = value[:4]
    if not 0 <= right <= offered:
        raise RecordingError(f"{right} right drafts of {offered} offered")
    return Offer(str(proposer), offered, match_length, right, tuple(value[4] if value[4:] else ()))


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def _told(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no field {error.args[0]!r}"
    return str(error)


def open_lines(path: Path, mode: Literal["r", "w"]) -> IO[str]:
    """A text file of lines, compressed where its name ends in .gz. The caller closes it."""
    if path.suffix == ".gz":
        packed: IO[bytes] = gzip.GzipFile(path, f"{mode}b", mtime=0)  # type: ignore[assignment]
        return io.TextIOWrapper(packed, encoding="utf-8")
    return path.open(mode, encoding="utf-8")
