"""The processes of `serve`: their command lines are ones that the subcommands understand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.config import DEFAULT_SPECULATION
from outrider.model_folders import Model
from outrider.serve_options import ServeOptions
from outrider.serve_plan import plan_services, proposer_names, public_url
from outrider.speculative_options import parse_speculative_config
from outrider.supervisor import Service

MODEL = Model(Path("/models/-odd name"), "my-model")
RUN = Path("/tmp/run")


def plan(**options: object) -> dict[str, Service]:
    return {s.name: s for s in plan_services(ServeOptions(**options), MODEL, RUN)}


def option(service: Service, name: str) -> list[str]:
    return [
        item.removeprefix(f"{name}=") for item in service.command if item.startswith(f"{name}=")
    ]


def test_default_is_two_proposers_a_verifier_and_a_gateway() -> None:
    services = plan()
    assert list(services) == ["ngram", "suffix", "verifier", "gateway"]
    verifier = services["verifier"]
    sockets = [f"unix:{services[name].socket}" for name in ("ngram", "suffix")]
    assert option(verifier, "--proposer") == sockets
    (config,) = option(verifier, "--speculative-config")
    assert parse_speculative_config(json.loads(config)) == DEFAULT_SPECULATION
    assert option(services["gateway"], "--verifier") == [f"unix:{verifier.socket}"]
    assert all(s.socket is None or s.socket.parent == RUN for s in services.values())


def test_off_starts_no_proposer() -> None:
    services = plan(no_speculation=True)
    assert list(services) == ["verifier", "gateway"]
    assert option(services["verifier"], "--proposer") == []
    assert option(services["verifier"], "--num-speculative-tokens") == ["0"]
    assert option(services["verifier"], "--speculative-config") == []


def test_the_verifier_is_told_of_each_proposer_in_the_order_of_addresses() -> None:
    shared = {
        "rejection_sample_method": "block",
        "num_speculative_tokens_per_batch_size": [[1, 8, 2], [9, 64, 0]],
        "enable_adaptive_verification": False,
    }
    entries = [
        {"method": "ngram", "num_speculative_tokens": 3, **shared},
        {"method": "suffix", **shared},
    ]
    services = plan(speculative_config=entries)
    (told,) = option(services["verifier"], "--speculative-config")
    assert parse_speculative_config(json.loads(told)) == parse_speculative_config(entries)
    addresses = option(services["verifier"], "--proposer")
    assert [Path(address).stem for address in addresses] == ["ngram", "suffix"]
    # What is the verifier's is not told to proposers.
    (config,) = option(services["ngram"], "--speculative-config")
    assert not json.loads(config).keys() & shared.keys()


def test_a_proposer_gets_its_own_config() -> None:
    services = plan(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    (config,) = option(services["ngram"], "--speculative-config")
    assert json.loads(config)["num_speculative_tokens"] == 3


DRAFT = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4}


def test_a_draft_model_is_loaded_where_and_as_the_target_is() -> None:
    services = plan(speculative_config=DRAFT, device="cuda", dtype="bfloat16", max_num_seqs=7)
    assert list(services) == ["draft_model", "verifier", "gateway"]
    drafting = services["draft_model"]
    (config,) = option(drafting, "--speculative-config")
    assert json.loads(config) == DRAFT
    assert option(drafting, "--device") == ["cuda"]
    assert option(drafting, "--dtype") == ["bfloat16"]
    assert option(drafting, "--max-num-seqs") == ["7"]
    # Its cache is bounded, since the target's is sized by what is left.
    assert option(drafting, "--kv-cache-memory-bytes") == [str(2 << 30)]
    assert services["verifier"].after == ("draft_model",)
    assert option(services["verifier"], "--kv-cache-memory-bytes") == []


def test_a_draft_model_elsewhere() -> None:
    services = plan(
        speculative_config=[{"method": "suffix"}, DRAFT, DRAFT],
        device="cuda",
        draft_device="cuda:1",
        draft_kv_cache_memory_bytes=1000,
        threads=3,
    )
    assert list(services) == ["suffix", "draft_model", "draft_model-2", "verifier", "gateway"]
    for name in ("draft_model", "draft_model-2"):
        assert option(services[name], "--device") == ["cuda:1"]
        assert option(services[name], "--kv-cache-memory-bytes") == ["1000"]
        assert dict(services[name].environment) == {"OMP_NUM_THREADS": "3"}
    assert services["verifier"].after == ("draft_model", "draft_model-2")
    assert option(services["suffix"], "--device") == []
    assert services["suffix"].environment == ()
    assert all(not services[name].after for name in ("suffix", "draft_model", "gateway"))


def test_a_draft_model_is_waited_for_longer_unless_told() -> None:
    deadlines = [
        option(plan(**options)["verifier"], "--draft-deadline-ms")
        for options in (
            {},
            {"speculative_config": DRAFT},
            {"speculative_config": DRAFT, "draft_deadline_ms": 3},
        )
    ]
    assert deadlines == [["10.0"], ["1000.0"], ["3.0"]]


def test_what_was_found_replaces_what_was_written() -> None:
    found = parse_speculative_config(DRAFT | {"model": "/models/draft", "max_model_len": 64})
    options = ServeOptions(speculative_config=DRAFT)
    for service in plan_services(options, MODEL, RUN, found)[:2]:
        (config,) = option(service, "--speculative-config")
        assert parse_speculative_config(json.loads(config)) == found


def test_the_same_method_twice_has_two_names() -> None:
    entry = {"method": "ngram", "num_speculative_tokens": 3}
    options = ServeOptions(speculative_config=[entry, entry, {"method": "suffix"}])
    assert proposer_names(options.speculation()) == ["ngram", "ngram-2", "suffix"]


def test_a_folder_like_an_option_stays_an_argument() -> None:
    assert plan()["verifier"].command[-2:] == ("--", str(MODEL.folder))


def test_options_reach_their_process() -> None:
    services = plan(
        max_model_len=128,
        threads=2,
        kv_cache_memory_bytes=1000,
        no_compile=True,
        enforce_eager=True,
        quantization="int8",
        batch_invariant=True,
        max_waiting_requests=7,
        max_logprobs=-1,
        enable_prefix_caching=False,
        prefill_stall_ms=20.0,
        max_captured_prefill_tokens=0,
        trust_request_chat_template=True,
        dtype="float32",
        draft_deadline_ms=2.5,
        served_model_name="name",
        host="0.0.0.0",
        port=9000,
        per_request_spec_decode_metrics="detailed",
        enable_force_include_usage=True,
        tool_call_parser="mistral",
        log_level="debug",
    )
    assert {
        "--max-model-len=128",
        "--threads=2",
        "--kv-cache-memory-bytes=1000",
        "--no-compile",
        "--enforce-eager",
        "--quantization=int8",
        "--batch-invariant",
        "--max-waiting-requests=7",
        "--max-logprobs=-1",
        "--no-enable-prefix-caching",
        "--prefill-stall-ms=20.0",
        "--max-captured-prefill-tokens=0",
        "--trust-request-chat-template",
        "--dtype=float32",
        "--draft-deadline-ms=2.5",
        "--served-model-name=name",
    } <= set(services["verifier"].command)
    assert {
        "--host=0.0.0.0",
        "--port=9000",
        "--per-request-spec-decode-metrics=detailed",
        "--enable-force-include-usage",
        "--tool-call-parser=mistral",
    } <= set(services["gateway"].command)
    assert all("--log-level=debug" in service.command for service in services.values())


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
    ],
)
def test_the_url_is_one_a_client_can_use(host: str, url: str) -> None:
    assert public_url(ServeOptions(host=host)) == url


def test_every_option_is_one_that_the_subcommand_has() -> None:
    import typer.main

    from outrider.cli import app

    services = plan(
        speculative_config=[*({"method": name} for name in ("suffix", "suffix")), DRAFT],
        draft_device="cpu",
        max_model_len=128,
        threads=2,
        kv_cache_memory_bytes=1000,
        quantization="int8",
        batch_invariant=True,
        enforce_eager=True,
        no_compile=True,
        enable_prefix_caching=False,
        trust_request_chat_template=True,
        enable_force_include_usage=True,
    )
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for service in services.values():
        # python -m outrider.cli NAME OPTION ...
        name, *words = service.command[3:]
        known = {
            option
            for parameter in commands[name].params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        given = {word.split("=")[0] for word in words if word.startswith("--") and word != "--"}
        assert given
        assert given - known == set()
