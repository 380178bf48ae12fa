"""A model of a few kilobytes with a real tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), max_model_len=256)
