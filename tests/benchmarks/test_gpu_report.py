from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.bars import BOTH, NGRAM, PLAIN
from benchmarks.gpu_bars import VLLM_NGRAM, VLLM_PLAIN
from benchmarks.gpu_report import GpuReport, own_plain
from tests.benchmarks.gpu_fakes import item, report

ITEMS = (
    item(VLLM_PLAIN, 200),
    item(PLAIN, 190, repetition=0),
    item(PLAIN, 200, repetition=1),
    item(NGRAM, 400, repetition=0),
    item(NGRAM, 440, repetition=1),
    replace(
        item(BOTH, 500, clients=8),
        readings={
            "client_cpu_share": 0.5,
            "gpu_busy_percent": 91.0,
            "gpu_sm_mhz": 1980.0,
            "outrider:verify_seconds{drafts}_sum": 0.128,
            "outrider:verify_seconds{drafts}_count": 20.0,
        },
    ),
)


def line(page: str, start: str, column: str = "") -> str:
    (found,) = [one for one in page.splitlines() if one.startswith(start) and column in one]
    return found


def test_document_and_page_survive_json() -> None:
    document = json.loads(json.dumps(report(*ITEMS).to_json()))
    again = GpuReport.from_json(document)
    assert again.to_markdown() == report(*ITEMS).to_markdown()
    assert again.to_json() == document


def test_the_page_has_the_issues_table_with_verdicts() -> None:
    page = report(*ITEMS).to_markdown()
    assert line(page, f"| {PLAIN}, T=0 |").startswith(f"| {PLAIN}, T=0 | **0.97**<br>≥ 0.95 met |")
    assert "**2.10**<br>≥ 2.30 missed by 9 %" in line(page, f"| {NGRAM}, T=0 |")
    assert "32 bars over vLLM plain: 1 met, 1 missed, 30 not measured." in page
    assert f"| {NGRAM}, 1 client, T=0 | ≥ 2.30 | 2.10 | missed, 9 % below |" in page


def test_a_cell_shows_speed_gain_acceptance_and_equality() -> None:
    found = line(report(*ITEMS).to_markdown(), f"| {NGRAM} |")
    # 420 is the median; each repetition over plain's own: 2.11 and 2.20; 80 of 160 in 40 steps.
    assert "**420** (400–440)<br>×2.15 (2.11–2.20)<br>3.00 / 50 %<br>2/2 same" in found


def test_the_page_says_what_clients_card_and_verifier_did() -> None:
    page = report(*ITEMS).to_markdown()
    assert "verify{drafts}" in page
    found = line(page, f"| {BOTH}, 8 clients, T=0 |", "MHz")
    assert "| 50 % | 91 % | 1980 MHz | 6.40 ms × 20, 50 % |" in found
    assert "Where the time goes" not in report(item(PLAIN, 1)).to_markdown()


def test_shares_of_the_time_are_of_all_of_it() -> None:
    steady = [replace(one, steady_seconds=0.01, steady_tokens=1.0) for one in ITEMS]
    found = line(report(*steady).to_markdown(), f"| {BOTH}, 8 clients, T=0 |", "MHz")
    assert "| 6.40 ms × 20, 50 % |" in found


def test_the_page_shows_machine_options_start_up_and_prompts() -> None:
    page = report(*ITEMS).to_markdown()
    for text in (
        "gpu H200",
        "driver 580",
        "outrider serve --fast",
        "outrider serve 12 s",
        "torch 2",
    ):
        assert text in page
    assert "at 1 client 1 of 60 tokens on average" in page


def test_the_document_has_both_ratios_of_every_cell() -> None:
    cells = {(c["row"], c["clients"]): c for c in report(*ITEMS).to_json()["cells"]}
    assert cells[NGRAM, 1]["times_vllm_plain"] == 2.1
    assert round(cells[NGRAM, 1]["times_own_plain"], 2) == 2.15
    assert cells[BOTH, 8]["times_vllm_plain"] is None


def test_an_interrupted_run_says_so() -> None:
    assert "interrupted" in replace(report(*ITEMS), complete=False).to_markdown()
    assert "interrupted" not in report(*ITEMS).to_markdown()


def test_rows_that_were_not_cold_are_exposed() -> None:
    warm = replace(item(PLAIN, 1), cached_prompt_tokens=5)
    assert f"Not cold: {PLAIN} found" in report(warm).to_markdown()


def test_every_row_is_compared_with_its_own_plain_row() -> None:
    assert own_plain(BOTH) == PLAIN
    assert own_plain(VLLM_NGRAM) == VLLM_PLAIN


def test_without_the_peer_there_is_no_table_of_ratios_to_it() -> None:
    assert "Relative to vLLM" not in report(item(PLAIN, 1)).to_markdown()
    assert "Relative to vLLM" not in report(item(VLLM_PLAIN, 1)).to_markdown()
    assert "Relative to vLLM" in report(*ITEMS).to_markdown()
