from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bars import NGRAM, PLAIN
from benchmarks.gpu_ceiling import PREFILL, StepCosts, ceiling, ceiling_table, prefill_share
from benchmarks.gpu_report import GpuReport
from benchmarks.measurements import CellKey, Measurement, Measurements
from benchmarks.merge import merge_gpu
from benchmarks.report_files import replace_text, write_report
from tests.benchmarks.gpu_fakes import item, report

KEY = CellKey(NGRAM, "spec-bench", 8, 0.0)
COSTS = StepCosts({(8, 1): 5.0, (8, 5): 6.0, (8, 9): 8.0, (1, 1): 5.0})


def plain(speed: float = 128.0, prefill: float = 0.0) -> Measurement:
    """A second of plain decoding, of which `prefill` seconds went into prompts."""
    seconds = {f"{PREFILL}_sum": prefill, f"{PREFILL}_count": 4.0}
    return replace(item(PLAIN, speed, clients=8), readings=seconds)


def drafted(speed: float = 160.0) -> Measurement:
    """128 tokens in 64 steps of a sequence: half of them verified 4 drafts, half of which fit."""
    return replace(item(NGRAM, speed, clients=8), steps=32, drafted=128, accepted=64)


def test_a_step_costs_what_lies_between_the_shapes_measured() -> None:
    assert COSTS.factor(8, 1) == pytest.approx(1.0)
    assert COSTS.factor(8, 3) == pytest.approx(1.1)
    assert COSTS.factor(8, 7) == pytest.approx(1.4)
    assert COSTS.factor(8, 40) == pytest.approx(1.6)
    assert COSTS.factor(32, 2) is None
    # One shape alone tells no price of a draft.
    assert COSTS.factor(1, 2) is None


def test_drafts_allow_what_they_bring_over_what_they_cost() -> None:
    limit = ceiling(Measurements([plain(), drafted()]), KEY, PLAIN, COSTS)
    assert limit is not None
    assert (limit.tokens_per_step, limit.verifying, limit.drafts_per_step) == (2.0, 0.5, 2.0)
    assert limit.costs == pytest.approx(1.1)
    assert limit.gain == pytest.approx(2 / 1.1)


def test_prefill_takes_its_share_however_good_the_drafts() -> None:
    found = Measurements([plain(prefill=0.25), drafted()])
    assert prefill_share(found.items[:1]) == pytest.approx(0.25)
    limit = ceiling(found, KEY, PLAIN, StepCosts())
    assert limit is not None
    assert limit.gain == pytest.approx(1 / (0.25 + 0.75 / 2))


def test_what_was_kept_is_of_the_speed_and_prefill_of_the_whole_time() -> None:
    items = [plain(prefill=0.25), drafted()]
    items = [replace(one, steady_seconds=0.5, steady_tokens=96.0) for one in items]
    assert prefill_share(items[:1]) == pytest.approx(0.25)
    table = ceiling_table(Measurements(items), {NGRAM: PLAIN}, COSTS)
    # Both are as fast as each other in their steady parts, though not in all their time.
    assert table.splitlines()[-1].endswith("| 25 % | ×1.51 | ×1.00 | 66 % |")


def test_where_nothing_was_verified_there_is_no_ceiling() -> None:
    assert ceiling(Measurements([plain()]), replace(KEY, row=PLAIN), PLAIN, COSTS) is None
    assert ceiling_table(Measurements([plain()]), {PLAIN: PLAIN}, COSTS) == ""


def test_the_table_tells_the_hosts_part_from_the_drafts() -> None:
    table = ceiling_table(Measurements([plain(), drafted()]), {NGRAM: PLAIN}, COSTS)
    assert table.splitlines()[-1] == (
        f"| {NGRAM}, 8 clients, T=0 | 2.00 | 50 % | 2.00 | ×1.10 | 0 % | ×1.82 | ×1.25 | 69 % |"
    )


def test_the_engines_table_is_its_first_configurations() -> None:
    lines = [{"sequences": 8, "tokens": q, "greedy": {"run_ms": 4.0 + q}} for q in (1, 5)]
    document = {"results": {"fp8": {"error": "no"}, "bfloat16": {"decoding": lines}}}
    costs = StepCosts.from_engine_report(document)
    assert costs.ms == {(8, 1): 5.0, (8, 5): 9.0}
    assert StepCosts.from_json(json.loads(json.dumps(costs.to_json()))) == costs


def test_a_report_keeps_the_ceilings_through_json_and_merging(tmp_path: Path) -> None:
    ours = replace(report(plain(), drafted()), step_costs=COSTS, times={"outrider serve": "10:00"})
    peer = report(item("vllm plain", 100, clients=8))
    merged = merge_gpu([peer.to_json(), ours.to_json()])
    assert merged.step_costs == COSTS and merged.times == {"outrider serve": "10:00"}
    write_report(merged, tmp_path, "gpu")
    document = json.loads((tmp_path / "gpu.json").read_text())
    (cell,) = [cell for cell in document["cells"] if cell["row"] == NGRAM]
    assert cell["ceiling"]["allowed"] == pytest.approx(1.8182)
    page = GpuReport.from_json(document).to_markdown()
    assert "## What the drafts allowed" in page
    assert page == (tmp_path / "gpu.md").read_text()


def test_an_older_document_without_costs_can_be_read() -> None:
    document = report(plain()).to_json()
    del document["step_costs"], document["times"]
    assert GpuReport.from_json(document).step_costs.ms == {}


def test_a_report_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    replace_text(path, "old")
    replace_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
