"""The format of recordings: there and back, and what damaged files are told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from verifier_service.simulation.recording import (
    Header,
    Offer,
    RecordedRound,
    RecordedStep,
    Recording,
    RecordingError,
    read_recording,
    write_recording,
)

HEADER = Header(8, {1: 0.02, 9: 0.024}, 256, (1e-6, 1e-7), "cpu")
ROUNDS = (
    RecordedRound(
        1, 40, 8, 8, True, 3, 2, 2, 0, (Offer("ngram", 4, 5, 2), Offer("suffix", 1, 2, 0))
    ),
    RecordedRound(2, 12, 7, 0, False, 1),
)
RECORDING = Recording(
    HEADER,
    (
        RecordedStep(0.021, 0.0015, 0.0005, 4, 52, 0, ROUNDS),
        RecordedStep(0.3, 0.002, 0.0, 128, 500, 127, ()),
    ),
)


@pytest.mark.parametrize("name", ["rounds.jsonl", "rounds.jsonl.gz"])
def test_a_recording_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_recording(path, RECORDING)
    assert read_recording(path) == RECORDING
    assert RECORDING.steps[0].asked and not RECORDING.steps[1].asked


def test_equal_recordings_are_equal_files(tmp_path: Path) -> None:
    write_recording(tmp_path / "a.jsonl.gz", RECORDING)
    first = (tmp_path / "a.jsonl.gz").read_bytes()
    write_recording(tmp_path / "a.jsonl.gz", RECORDING)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == first


def test_confidences_are_kept(tmp_path: Path) -> None:
    offer = Offer("head", 2, 0, 1, (0.9, 0.45))
    part = RecordedRound(1, 40, 8, 8, True, 1, offers=(offer,))
    recording = Recording(HEADER, (RecordedStep(0.02, 0.0, 0.0, 1, 40, 0, (part,)),))
    write_recording(tmp_path / "a.jsonl", recording)
    assert read_recording(tmp_path / "a.jsonl") == recording


def lines(path: Path) -> list[str]:
    write_recording(path, RECORDING)
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: [], "the file is empty"),
        (lambda s: ["{}"], "line 1: this is no recording of rounds"),
        (lambda s: ["[1]"], "line 1: this is no recording of rounds"),
        (lambda s: ["what"], "line 1: Expecting value"),
        (lambda s: [s[0].replace('"version":1', '"version":2')], "version 2 of the format"),
        (lambda s: [s[0], s[1][:40]], "line 2: "),
        (lambda s: [s[0], s[1].replace('"rows"', '"row"')], "line 2: no field 'rows'"),
        (lambda s: [s[0], s[1].replace('"ngram",4,5,2', '"ngram",4,5,6')], "6 right drafts of 4"),
    ],
)
def test_a_damaged_file_is_told_where(tmp_path: Path, change, told: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n".join(change(lines(path))))
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_cut_compressed_file_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl.gz"
    write_recording(path, RECORDING)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordingError):
        read_recording(path)
    path.write_bytes(b"not compressed")
    with pytest.raises(RecordingError):
        read_recording(path)


def test_the_file_holds_numbers_and_proposers_names_only(tmp_path: Path) -> None:
    write_recording(tmp_path / "a.jsonl.gz", RECORDING)
    with gzip.open(tmp_path / "a.jsonl.gz", "rt") as file:
        _, *steps = map(json.loads, file)

    def words(value: object) -> set[str]:
        if isinstance(value, dict):
            return set().union(*map(words, value.values()))
        if isinstance(value, list):
            return set().union(*map(words, value))
        return {value} if isinstance(value, str) else set()

    assert words(steps) == {"ngram", "suffix"}
