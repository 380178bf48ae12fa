"""`outrider proposer`: one process that guesses tokens."""

from __future__ import annotations


def proposer() -> None:
    """Guess tokens for verifiers."""
