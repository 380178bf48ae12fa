from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InputError
from tests.fakes import FakeCore
from tests.verifier_service.serving import settings_for
from tests.verifier_service.test_target_facts import CONFIG
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.backend import load_backend
from verifier_service.engines.loading import ModelLoadError
from verifier_service.messages import DraftSource, NoDrafts
from verifier_service.proposer_pool import ProposerPool
from verifier_service.settings import VerifierSettings

ELSEWHERE = "unix:/nonexistent/p.sock"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 400}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "min_p": 0.1}))
    return tmp_path


class Builder:
    """In the place of `build_core`: remembers what it was given."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.sources: list[DraftSource] = []
        self._failure = failure

    def __call__(self, settings: VerifierSettings, source: DraftSource) -> FakeCore:
        self.sources.append(source)
        if self._failure is not None:
            raise self._failure
        return FakeCore(lambda _: [])


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    return installed(monkeypatch, Builder())


def installed(monkeypatch: pytest.MonkeyPatch, builder: Builder) -> Builder:
    monkeypatch.setattr("verifier_service.build.build_core", builder)
    return builder


def settings(folder: Path, **changes: Any) -> VerifierSettings:
    return settings_for("unix:unused", model=str(folder), **changes)


def test_without_proposers_decoding_is_plain(folder: Path, builder: Builder) -> None:
    backend = load_backend(settings(folder), "instance")
    assert isinstance(builder.sources[0], NoDrafts)
    assert backend.proposers.states() == ()
    assert backend.defaults.temperature == 0.5
    assert backend.text.encode("a cat", add_special_tokens=True) == byte_level_tokenizer().encode(
        "a cat"
    )
    backend.close()


def test_proposers_become_the_cores_drafts_and_the_edges_states(
    folder: Path, builder: Builder
) -> None:
    backend = load_backend(settings(folder, proposers=(ELSEWHERE,)), "instance")
    assert isinstance(builder.sources[0], ProposerPool)
    assert [s.to_proto().address for s in backend.proposers.states()] == [ELSEWHERE]
    backend.close()


def test_a_ceiling_of_0_asks_no_proposer(folder: Path, builder: Builder) -> None:
    load_backend(
        settings(folder, proposers=(ELSEWHERE,), num_speculative_tokens=0), "instance"
    ).close()
    assert isinstance(builder.sources[0], NoDrafts)


def test_a_draft_deadline_of_0_is_refused(folder: Path, builder: Builder) -> None:
    with pytest.raises(InputError, match="--draft-deadline-ms: 0 is not allowed"):
        load_backend(settings(folder, proposers=(ELSEWHERE,), draft_deadline_ms=0.0), "instance")
    assert builder.sources == []


@pytest.mark.parametrize(
    ("failure", "seen", "says"),
    [
        (ModelLoadError("weights are missing"), InputError, "model: weights are missing"),
        (MemoryError("no room"), MemoryError, "no room"),
    ],
)
def test_a_core_that_cannot_be_built_leaves_no_streams_open(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    failure: Exception,
    seen: type[Exception],
    says: str,
) -> None:
    builder = installed(monkeypatch, Builder(failure))
    with pytest.raises(seen, match=says):
        load_backend(settings(folder, proposers=(ELSEWHERE,)), "instance")
    (source,) = builder.sources
    assert isinstance(source, ProposerPool)
    assert source._ended


def test_what_the_generation_config_asks_is_followed_and_stages_are_logged(
    folder: Path, builder: Builder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    backend = load_backend(settings(folder), "instance")
    backend.close()
    assert backend.defaults.temperature == 0.5
    assert backend.defaults.min_p == pytest.approx(0.1)
    stages = [r.getMessage() for r in caplog.records if "stage=" in r.getMessage()]
    assert [line.split()[2] for line in stages] == [
        "stage=config", "stage=config", "stage=tokenizer", "stage=tokenizer",
        "stage=engine", "stage=engine",
    ]  # fmt: skip
