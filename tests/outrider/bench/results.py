"""Saved results as commands make them, small and with known figures."""

from __future__ import annotations

from typing import Any


def ratio(value: float, low: float = 0.0, high: float = 0.0) -> dict[str, Any]:
    return {
        "value": value,
        "low": low or value,
        "high": high or value,
        "spread": "95 % bootstrap over 40 prompts",
    }


def point(
    arm: str = "speculation",
    *,
    clients: int | None = 1,
    rate: float | str = "inf",
    k: int | None = None,
    speed: float = 150.0,
    baseline: float | None = 100.0,
    rates: list[float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    figures = {"completed": 40, "failed": 0, "output_throughput": speed, "mean_tpot_ms": 6.25}
    gain = None
    if baseline is not None:
        gain = {
            "output_throughput": ratio(speed / baseline, speed / baseline - 0.1, 2.0),
            "tpot": ratio(1.6),
            "e2el": ratio(1.4, 1.3, 1.5),
            "same_answers": 39,
            "compared_answers": 40,
        }
    return {
        "request_rate": rate,
        "max_concurrency": clients,
        "arm": arm,
        "num_speculative_tokens": k,
        **figures,
        "spec_decode_acceptance_rate": 42.5,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 100,
        "spec_decode_per_position_acceptance_rates": [0.7, 0.4] if rates is None else rates,
        "baseline": None if baseline is None else {**figures, "output_throughput": baseline},
        "speedup": gain,
        "notes": ["A note <of> the point."],
        **more,
    }


def sweep(*points: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": 1,
        "kind": "sweep",
        "date": "2026-01-02T03:04:05Z",
        "command": ["outrider", "bench", "sweep", "--label", "a b"],
        "outrider": "0.1.0",
        "client": {"cpus": 2, "python": "3.11"},
        "label": None,
        "metadata": {"gpu": "<none>"},
        "settings": {"dataset_name": "outrider"},
        "servers": [{"url": "http://h:1", "kind": "vllm", "version": "0.29.0", "model": "<m>"}],
        "model_id": "<m>",
        "notes": [],
        "points": list(points),
    }
