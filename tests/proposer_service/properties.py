"""How property tests of this package run: no verdict by timing."""

from __future__ import annotations

from hypothesis import settings

PROPERTY = settings(max_examples=60, deadline=None)
