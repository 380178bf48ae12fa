from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.bars import BOTH, NGRAM, PLAIN, SUFFIX
from benchmarks.gpu import main, make_plan, measure_phases, step_costs
from benchmarks.gpu_bars import VLLM_NGRAM, VLLM_PLAIN
from benchmarks.gpu_engines import (
    DRAFT_MODEL,
    STREAMED,
    Opened,
    PeerPhase,
    peer_command,
    plan_phases,
)
from benchmarks.gpu_options import (
    describe_model,
    parse,
    prompts_at,
    prompts_needed,
    without_folders,
)
from benchmarks.measurements import Measurements
from benchmarks.merge import merge_gpu
from benchmarks.prompts import Prompt
from benchmarks.systems import Answer, Row, Work
from tests.benchmarks.gpu_fakes import Engine, FakePhase, item, report

QUIET = Console(quiet=True)
PROMPTS = [Prompt(f"p{n}", (n, n)) for n in range(64)]


def options(tmp_path: Path, *arguments: str) -> argparse.Namespace:
    given = ["--clients", "1,8", "--new-tokens", "8", "--repetitions", "2", "--out", str(tmp_path)]
    return parse([*given, *arguments])


def test_by_default_the_issues_cells_are_measured_most_telling_first() -> None:
    chosen = parse([])
    assert chosen.rows == ["outrider", VLLM_PLAIN]
    assert (chosen.new_tokens, chosen.device, chosen.max_num_batched_tokens) == (128, "cuda", 8192)
    assert prompts_at(chosen) == {8: 3, 32: 3, 128: 3}
    assert prompts_needed(chosen) == 384
    plan = make_plan(chosen, (Row("a", Engine(1), (1, 8, 32, 128), (0.0, 1.0)),), PROMPTS)
    assert [(sweep.temperature, sweep.clients) for sweep in plan.sweeps()] == [
        (temperature, count) for temperature in (0.0, 1.0) for count in (1, 8, 32, 128)
    ]


def test_quick_is_small_and_takes_the_cpu() -> None:
    chosen = parse(["--quick", "--device", "cpu"])
    assert (chosen.clients, chosen.new_tokens, chosen.repetitions) == ([1, 2], 16, 1)
    assert chosen.max_num_batched_tokens is None


def test_engines_have_the_card_one_after_the_other(tmp_path: Path) -> None:
    log: list[str] = []
    ours = FakePhase("outrider serve", {PLAIN: 100.0, NGRAM: 250.0}, log)
    peer = FakePhase(VLLM_PLAIN, {VLLM_PLAIN: 100.0}, log)
    done = measure_phases([ours, peer], options(tmp_path), PROMPTS, report(), None, QUIET)
    assert log == [
        f"{what} {name}" for name in (ours.name, peer.name) for what in ("start", "stop")
    ]
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["complete"] is True and done.complete
    verdicts = {bar["name"]: bar["verdict"] for bar in document["bars"]}
    assert verdicts[f"{NGRAM}, 8 clients, T=0"] == "met"
    assert verdicts[f"{PLAIN}, 1 client, T=1"] == "met"
    assert document["starts"] == {"outrider serve": 12.0, VLLM_PLAIN: 12.0}
    assert (tmp_path / "gpu.md").read_text() == done.to_markdown()


def test_answers_are_equally_long_and_clients_as_many_as_told(tmp_path: Path) -> None:
    phase = FakePhase("outrider serve", {PLAIN: 100.0}, [])
    measure_phases([phase], options(tmp_path), PROMPTS, report(), None, QUIET)
    works = [work for work in phase.engines[PLAIN].works if work.lengths[0] == 8]
    assert {work.lengths for work in works} == {(8,), (8,) * 24}
    assert {work.clients for work in works if len(work.prompts) == 24} == {8}
    # At one client six prompts, twice, at two temperatures.
    assert sum(len(work.prompts) == 1 for work in works) == 6 * 2 * 2


def test_every_row_is_warmed_at_every_number_of_clients_and_temperature(tmp_path: Path) -> None:
    phase = FakePhase("outrider serve", {PLAIN: 100.0, NGRAM: 1.0}, [])
    chosen = options(tmp_path, "--warmup-tokens", "3")
    measure_phases([phase], chosen, PROMPTS, report(), None, QUIET)
    for engine in phase.engines.values():
        warm = [(len(w.prompts), w.temperature) for w in engine.works if w.lengths[0] == 3]
        assert warm == [(1, 0.0), (8, 0.0), (1, 1.0), (8, 1.0)]


def test_a_row_of_some_cells_is_warmed_and_measured_at_these_alone(tmp_path: Path) -> None:
    engine = Engine(100.0)

    class Phase(FakePhase):
        def open(self, stack: ExitStack) -> Opened:
            return Opened((Row(STREAMED, engine, (8,), (0.0,)),), {}, 1.0)

    done = measure_phases(
        [Phase("outrider serve", {}, [])], options(tmp_path), PROMPTS, report(), None, QUIET
    )
    assert {(len(work.prompts), work.temperature) for work in engine.works} == {(8, 0.0), (24, 0.0)}
    assert {(one.clients, one.temperature) for one in done.measurements.items} == {(8, 0.0)}


def test_the_engines_table_and_the_time_of_each_engine_are_in_the_report(tmp_path: Path) -> None:
    line = {"sequences": 8, "tokens": 1, "greedy": {"run_ms": 5.0}}
    table = tmp_path / "gpu_engine.json"
    table.write_text(json.dumps({"results": {"bfloat16": {"decoding": [line]}}}))
    chosen = options(tmp_path, "--engine-table", str(table))
    assert step_costs(chosen).ms == {(8, 1): 5.0}
    table.write_text("{}")
    with pytest.raises(ValueError, match="--engine-table: no report"):
        step_costs(chosen)
    phase = FakePhase("outrider serve", {PLAIN: 100.0}, [])
    done = measure_phases([phase], options(tmp_path), PROMPTS, report(), None, QUIET)
    assert done.times["outrider serve"].endswith(" UTC")
    assert "- Ready at: outrider serve 20" in done.to_markdown()


def test_an_interrupted_run_keeps_its_finished_sweeps(tmp_path: Path) -> None:
    log: list[str] = []

    class Failing(Engine):
        def generate(self, work: Work) -> Answer:
            if work.temperature > 0:
                raise KeyboardInterrupt
            return super().generate(work)

    class Phase(FakePhase):
        def open(self, stack: ExitStack) -> Opened:
            opened = super().open(stack)
            rows = (Row(PLAIN, Failing(100.0), (1, 8), (0.0, 1.0)),)
            return Opened(rows, opened.versions, opened.start_seconds)

    phase = Phase("outrider serve", {PLAIN: 100.0}, log)
    chosen = options(tmp_path, "--warmup-tokens", "0")
    with pytest.raises(KeyboardInterrupt):
        measure_phases([phase], chosen, PROMPTS, report(), None, QUIET)
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["complete"] is False
    assert {(c["clients"], c["temperature"]) for c in document["cells"]} == {(1, 0.0), (8, 0.0)}
    assert log[-1] == "stop outrider serve"


def test_no_sweep_begins_when_the_time_is_over(tmp_path: Path) -> None:
    phase = FakePhase("outrider serve", {PLAIN: 100.0}, [])
    chosen = options(tmp_path, "--minutes", "-1")
    done = measure_phases([phase], chosen, PROMPTS, report(), None, QUIET)
    assert done.measurements.items == []


def test_wanted_rows_decide_which_engines_start(tmp_path: Path) -> None:
    def names(*arguments: str) -> list[tuple[str, object]]:
        chosen = parse(list(arguments))
        phases = plan_phases(chosen, tmp_path, tmp_path, chosen.rows)
        return [(phase.name, getattr(phase, "rows", None)) for phase in phases]

    ours = ("outrider serve", (PLAIN, NGRAM, SUFFIX, BOTH, STREAMED))
    assert names("--peer-env", "env.sh") == [ours, (VLLM_PLAIN, None)]
    assert names() == [ours]
    assert names("--rows", "outrider plain,outrider both") == [("outrider serve", (PLAIN, BOTH))]
    drafting = '[{"method": "draft_model", "model": "small", "num_speculative_tokens": 4}]'
    assert names("--rows", "outrider draft", "--speculative-config", drafting) == [
        ("outrider serve", (DRAFT_MODEL,))
    ]
    with pytest.raises(ValueError, match="no row is called 'outrider draft'"):
        names("--rows", "outrider draft")
    assert names("--rows", "vllm", "--peer-python", "py") == [
        (VLLM_PLAIN, None),
        (VLLM_NGRAM, None),
    ]
    with pytest.raises(ValueError, match="need --peer-python or --peer-env"):
        names("--rows", "vllm plain")
    with pytest.raises(ValueError, match="no row is called 'nobody'"):
        names("--rows", "nobody")


def test_how_drafts_were_made_is_told_without_the_readers_paths(tmp_path: Path) -> None:
    drafting = '[{"method": "draft_model", "model": "/own/small", "num_speculative_tokens": 4}]'
    arguments = ["--rows", "outrider draft", "--speculative-config", drafting]
    chosen = parse(arguments)
    assert without_folders(chosen, arguments)[-1] == drafting.replace("/own/small", "DRAFT_MODEL")
    (phase,) = plan_phases(chosen, tmp_path, tmp_path, chosen.rows)
    assert phase.options.endswith("(draft_model K=4)")
    assert "/own" not in phase.options


def test_the_peer_runs_in_the_environment_that_the_file_makes(tmp_path: Path) -> None:
    assert peer_command("python3", None) == ("python3", "-m", "benchmarks.gpu_peer_vllm")
    command = peer_command(None, Path("env.sh"))
    assert command[:2] == ("bash", "-c")
    assert command[3] == str(Path("env.sh").absolute())
    assert command[4:] == (str(Path(sys.executable).absolute()), "-m", "benchmarks.gpu_peer_vllm")


def test_a_peer_that_is_in_a_shell_environment_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "benchmarks"
    package.mkdir()
    # A package, or one of the same name elsewhere on the path would be taken.
    (package / "__init__.py").touch()
    (package / "gpu_peer_vllm.py").write_text(PEER)
    (tmp_path / "env.sh").write_text("export FROM_THE_FILE=7\n")
    monkeypatch.setattr("benchmarks.gpu_engines.ROOT", tmp_path)
    chosen = parse(["--peer-env", str(tmp_path / "env.sh"), "--clients", "1,2"])
    phase = PeerPhase(chosen, tmp_path / "model", tmp_path / "peer.log", VLLM_PLAIN)
    with ExitStack() as stack:
        opened = phase.open(stack)
        answer = opened.rows[0].system.generate(Work(((1,),) * 3, (2,) * 3, 0.0, 1, clients=2))
    assert opened.versions == {"vllm": "7"}
    # One token of each answer says how many clients there were, the other how much memory.
    assert answer.outputs == ((2, 60),) * 3


PEER = """
import json, os, sys
options = json.loads(sys.argv[1])
memory = round(100 * options["gpu_memory_utilization"])
versions = {"vllm": os.environ["FROM_THE_FILE"]}
print(json.dumps({"start_seconds": 1, "versions": versions}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request.get("quit"):
        break
    outputs = [[request["clients"], memory] for _ in request["prompts"]]
    spans = [[0, 1] for _ in outputs]
    print(json.dumps({"seconds": 1, "outputs": outputs, "spans": spans,
                      "steps": 0, "drafted": 0, "accepted": 0}), flush=True)
"""


def test_the_target_is_described_by_its_shape(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shown = describe_model(tmp_path)["target"]
    assert shown.startswith("llama, 32 layers, hidden 4096, 32 heads / 8 KV heads")


def test_parts_are_merged_and_a_later_cell_replaces_an_earlier_one() -> None:
    ours = report(item(PLAIN, 90), item(NGRAM, 200)).to_json()
    again = report(item(PLAIN, 100), commit="def").to_json()
    peer = report(item(VLLM_PLAIN, 100)).to_json() | {"versions": {"vllm": "0.26"}}
    merged = merge_gpu([ours, peer, again])
    bars = {bar["name"]: bar["measured"] for bar in merged.to_json()["bars"]}
    assert bars[f"{PLAIN}, 1 client, T=0"] == pytest.approx(1.0)
    assert bars[f"{NGRAM}, 1 client, T=0"] == pytest.approx(2.0)
    assert merged.machine["commit"] == "abc, def"
    assert merged.versions == {"torch": "2", "vllm": "0.26"}
    assert any("Measured again" in note and PLAIN in note for note in merged.notes)


def test_parts_whose_speeds_are_counted_differently_are_refused() -> None:
    old, new = item(PLAIN, 90), replace(item(NGRAM, 90), steady_seconds=1.0, steady_tokens=99.5)
    for parts in ((old, new), (new, old)):
        with pytest.raises(ValueError, match=f"steady_seconds: {PLAIN} measured without"):
            merge_gpu([report(part).to_json() for part in parts])
    also = replace(new, row=PLAIN)
    (cell, _) = merge_gpu([report(also).to_json(), report(new).to_json()]).to_json()["cells"]
    assert cell["tokens_per_second"] == pytest.approx(99.5)


def test_a_log_tells_the_speed_that_the_page_shows(tmp_path: Path) -> None:
    class Steady(Engine):
        def generate(self, work: Work) -> Answer:
            answer = super().generate(work)
            return replace(answer, steady_seconds=2.0, steady_tokens=84.0)

    class Phase(FakePhase):
        def open(self, stack: ExitStack) -> Opened:
            return Opened((Row(PLAIN, Steady(100.0), (8,), (0.0,)),), {}, 1.0)

    log = Console(file=io.StringIO())
    done = measure_phases([Phase("", {}, [])], options(tmp_path), PROMPTS, report(), None, log)
    assert isinstance(log.file, io.StringIO)
    assert f"(1) 8 clients, T=0: {PLAIN} 42.0 tokens/s" in log.file.getvalue()
    assert f"| {PLAIN} | **42** (42–42)<br>" in done.to_markdown()
    document = json.loads((tmp_path / "gpu.json").read_text())
    (first, _) = document["measurements"]
    kept = ("new_tokens", "seconds", "steady_tokens", "steady_seconds")
    assert [first[name] for name in kept] == [192, 1.92, 84.0, 2.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {"seed": "2"}}, "settings"),
        ({"machine": {"gpu": "A100", "driver": "580"}}, "gpu: A100 is not H200"),
        ({"versions": {"torch": "3"}}, "torch: 3 is not 2"),
    ],
)
def test_parts_of_different_work_or_cards_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        merge_gpu([report(item(PLAIN, 1)).to_json(), report().to_json() | change])


def test_a_report_is_rendered_again_from_its_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(item(PLAIN, 90), item(VLLM_PLAIN, 100))
    (tmp_path / "old.json").write_text(json.dumps(whole.to_json()))
    arguments = ["gpu", "--render", str(tmp_path / "old.json"), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*arguments, "--name", "new"])
    assert main() == 0
    assert (tmp_path / "new.md").read_text() == whole.to_markdown()
    assert Measurements(whole.measurements.items).cell_keys()
