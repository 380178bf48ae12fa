"""docker-compose.yml, the Dockerfile and what is mounted: what reading them can tell."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from gateway.metrics import GatewayMetrics
from gateway.verifier import Verifier
from outrider import __version__
from outrider.cli import app
from outrider.draft_models import DRAFT_MODEL_DEADLINE_MS, SHARED_CACHE_BYTES

ROOT = Path(__file__).resolve().parents[2]
ON_GPU = ("verifier-gpu", "proposer-draft-model")
OWN = ("gateway", "verifier", "proposer-ngram", "proposer-suffix", *ON_GPU)

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_services_and_their_profiles() -> None:
    assert set(OWN) < set(SERVICES)
    profiles = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    for name in ON_GPU:
        assert profiles.pop(name) == ["gpu"]
    for name in ("otel-collector", "prometheus", "grafana"):
        assert profiles.pop(name) == ["observability"]
    assert set(profiles) == {"gateway", "verifier", "proposer-ngram", "proposer-suffix"}
    assert not any(profiles.values())


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_no_rights_and_limits(name: str) -> None:
    service = SERVICES[name]
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"][0].startswith("/tmp:size=")
    assert not {"privileged", "cap_add", "network_mode", "pid", "user"} & set(service)
    limits = service["deploy"]["resources"]["limits"]
    assert limits["memory"]
    assert limits["pids"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_to_this_machine_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")
    if name in OWN and name != "gateway":
        assert "ports" not in SERVICES[name]


@pytest.mark.parametrize("name", OWN)
def test_health_is_asked_in_python_and_stops_outlast_drains(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][:4] == ["CMD", "python", "-m", "outrider.health"]
    grace = int(service["stop_grace_period"].removesuffix("s"))
    drains = [int(o.partition("=")[2]) for o in service["command"] if "--drain-timeout=" in o]
    assert grace > sum(drains)
    assert bool(drains) == (not name.startswith("proposer"))


@pytest.mark.parametrize("name", OWN)
def test_commands_take_options_that_exist(name: str) -> None:
    subcommand, *options = SERVICES[name]["command"]
    command = typer.main.get_command(app)
    known = {
        flag
        for parameter in command.commands[subcommand].params  # type: ignore[attr-defined]
        for flag in parameter.opts
    }
    used = {option.partition("=")[0] for option in options if option.startswith("--")}
    assert used <= known


def test_proposers_reach_nobody_outside() -> None:
    assert COMPOSE["networks"]["speculation"]["internal"] is True
    for name in ("proposer-ngram", "proposer-suffix"):
        assert SERVICES[name]["networks"] == ["speculation"]


def test_services_find_each_other_by_names_that_may_stand_for_many() -> None:
    assert "--verifier=dns:verifier:50051" in SERVICES["gateway"]["command"]
    for name in ("verifier", "verifier-gpu"):
        assert SERVICES[name]["networks"]["speculation"]["aliases"] == ["verifier"]
        proposers = [o for o in SERVICES[name]["command"] if o.startswith("--proposer=")]
        dialled = ("ngram", "suffix", *(["draft-model"] if name == "verifier-gpu" else []))
        assert proposers == [f"--proposer=dns:proposer-{m}:50052" for m in dialled]
    # A fixed name or port would forbid a second container.
    scaled = [SERVICES[n] for n in ("verifier", "proposer-ngram", "proposer-suffix")]
    assert not any({"container_name", "ports"} & set(service) for service in scaled)


def test_both_parts_on_a_gpu_ask_for_one() -> None:
    (of_verifier,), (of_draft,) = (
        SERVICES[name]["deploy"]["resources"]["reservations"]["devices"] for name in ON_GPU
    )
    assert of_verifier == {
        "driver": "nvidia",
        "count": "${OUTRIDER_GPUS:-1}",
        "capabilities": ["gpu"],
    }
    # The same card unless told otherwise; a number and a list of cards exclude each other.
    assert of_draft == {
        "driver": "nvidia",
        "device_ids": ["${OUTRIDER_DRAFT_GPU:-0}"],
        "capabilities": ["gpu"],
    }
    assert all("--device=cuda" in SERVICES[name]["command"] for name in ON_GPU)
    # Kernels are compiled in both.
    assert all(SERVICES[name]["tmpfs"] == ["/tmp:size=2g,mode=1777,exec"] for name in ON_GPU)
    # One build: the later image only has other words about it.
    assert all(
        SERVICES[name]["build"]["args"] == {"USE_WHEELS": "${OUTRIDER_GPU_USE_WHEELS:-no}"}
        for name in ON_GPU
    )


def test_a_draft_model_leaves_the_card_to_the_verifier() -> None:
    draft, verifier = SERVICES["proposer-draft-model"], SERVICES["verifier-gpu"]
    # The verifier's cache takes what is left once the draft model has all that it will have.
    assert verifier["depends_on"]["proposer-draft-model"] == {"condition": "service_healthy"}
    assert any(o.startswith("--kv-cache-memory-bytes=") for o in draft["command"])
    assert not any(o.startswith("--kv-cache-memory-bytes=") for o in verifier["command"])
    waits = [o for o in verifier["command"] if o.startswith("--draft-deadline-ms=")]
    assert waits == [f"--draft-deadline-ms={DRAFT_MODEL_DEADLINE_MS:g}"]
    assert f"kv-cache-memory-bytes=${{OUTRIDER_DRAFT_KV_CACHE_BYTES:-{SHARED_CACHE_BYTES}}}" in (
        " ".join(draft["command"])
    )


def test_a_draft_model_is_fetched_as_the_target_is() -> None:
    draft, verifier = SERVICES["proposer-draft-model"], SERVICES["verifier-gpu"]
    assert set(draft["networks"]) == set(verifier["networks"])
    assert draft["volumes"] == verifier["volumes"]
    assert draft["environment"] == verifier["environment"]
    assert draft["healthcheck"]["start_period"] == verifier["healthcheck"]["start_period"]
    # Both defaults are one model: another one's tokenizer would be refused.
    assert "--model=${OUTRIDER_DRAFT_MODEL:-smollm2-135m}" in draft["command"]
    assert "${OUTRIDER_MODEL:-smollm2-135m}" in verifier["command"]


def test_every_target_is_built_and_versions_are_the_packages() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    for name in OWN:
        assert SERVICES[name]["build"]["target"] in targets
        assert SERVICES[name]["image"].endswith(f":{__version__}")
    assert f'org.opencontainers.image.version="{__version__}"' in DOCKERFILE


def test_images_run_as_a_user_and_are_labelled() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    named = {stage.split()[2]: stage for stage in stages}
    for name in ("gateway", "proposer", "verifier", "verifier-gpu", "proposer-model"):
        users = re.findall(r"^USER (\S+)$", named[name], re.MULTILINE)
        assert users[-1] == "outrider"
    for name in ("gateway", "proposer", "verifier", "proposer-model"):
        assert f'image.title="outrider-{name}"' in named[name]
        assert "image.description=" in named[name]


def test_the_compiler_of_the_gpu_image_is_fetched_only_where_it_is_missing() -> None:
    stage = DOCKERFILE.rpartition("FROM verifier AS verifier-gpu")[2]
    assert re.search(r"command -v g\+\+ \|\| \{[^}]*apt-get install[^}]*\}", stage)
    assert "apt-get" not in DOCKERFILE.partition("FROM verifier AS verifier-gpu")[0]


def test_grafana_only_shows() -> None:
    settings = SERVICES["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                tracked = ROOT / source
                assert tracked.exists(), source
                assert volume.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_the_wheel_folder_is_there_in_a_clone_and_its_wheels_are_not_committed() -> None:
    command = ["git", "check-ignore", "deploy/wheels/x.whl"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
    assert (ROOT / "deploy/wheels/.gitignore").is_file()


def exposed() -> str:
    """Everything that a gateway tells Prometheus of a verifier that did a bit of all."""
    stats = types_pb2.AcceptanceStats(
        num_spec_steps=1,
        num_draft_tokens=1,
        num_accepted_draft_tokens=1,
        acceptance_histogram=[1, 1],
        accepted_per_position=[1],
        proposed_per_position=[1],
    )
    histogram = types_pb2.Histogram(upper_bounds=[1.0], counts=[1, 0], sum=1.0)
    info = pb.GetInfoResponse(
        model="m",
        num_speculative_tokens=1,
        acceptance=stats,
        off_rounds={"why": 1},
        finished_requests={"stop": 1},
        proposers=[pb.ProposerState(name="ngram", state="connected", dropped={"late": 1})],
        acceptance_by_proposer=[pb.ProposerAcceptance(name="ngram", num_spec_steps=1)],
        step_times=pb.StepTimes(
            draft_wait=histogram, plain=histogram, verify=histogram, prefill=histogram
        ),
        speculation=pb.SpeculationFigures(ceiling=1),
    )
    metrics = GatewayMetrics()
    metrics.first_token("m", 0.0)
    return metrics.exposition(*snapshot(info)).decode()


def snapshot(info: pb.GetInfoResponse) -> tuple[list[Verifier], list[Any]]:
    class Known:
        index, address, problem, in_flight = 0, "unix:v", "", 0

    return [Known()], [(Known(), info)]  # type: ignore[list-item]


def test_the_dashboard_and_prometheus_ask_for_what_the_gateway_tells() -> None:
    told = set(re.findall(r"^([a-z_]+:[a-z_]+)(?:\{|\s)", exposed(), re.MULTILINE))
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/outrider.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for text in expressions for name in re.findall(r"(?:vllm|outrider):\w+", text)}
    assert len(asked) > 15
    assert asked <= told
    scraped = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    assert ["gateway:8000"] in [c["static_configs"][0]["targets"] for c in scraped]


def test_the_collector_listens_where_the_page_says() -> None:
    config = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())
    assert config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == "0.0.0.0:4317"
    for pipeline in config["service"]["pipelines"].values():
        assert set(pipeline["exporters"]) <= set(config["exporters"])
        assert set(pipeline["processors"]) <= set(config["processors"])
    assert "--otlp-forward=${OUTRIDER_OTLP_FORWARD:-}" in SERVICES["gateway"]["command"]
    page = (ROOT / "docs/deployment.md").read_text()
    assert "OUTRIDER_OTLP_FORWARD=otel-collector:4317" in page


class Loader(yaml.SafeLoader):
    """Knows the tags by which a compose file replaces another one's lists."""


Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def test_the_pages_way_to_publish_is_the_files_gateway_with_keys_and_tls() -> None:
    page = (ROOT / "docs/deployment.md").read_text().partition("### Open to others")[2]
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[:1]
    override = yaml.load(text, Loader)
    gateway = override["services"]["gateway"]
    added = ("--api-key-file", "--cache-salt-secret-file", "--ssl-certfile", "--ssl-keyfile")
    files = {o.partition("=")[2] for o in gateway["command"] if o.startswith(added)}
    assert files == {f"/run/secrets/{name}" for name in override["secrets"]}
    assert set(gateway["secrets"]) == set(override["secrets"])
    # Without what has settings of its own.
    kept = [o for o in SERVICES["gateway"]["command"] if "${" not in o]
    assert [o for o in gateway["command"] if not o.startswith(added)] == kept
    assert gateway["healthcheck"]["test"][:4] == SERVICES["gateway"]["healthcheck"]["test"][:4]


def test_the_page_names_every_setting() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    page = (ROOT / "docs/deployment.md").read_text()
    for setting in set(re.findall(r"\$\{(OUTRIDER_\w+)", text)):
        assert f"`{setting}`" in page, setting
