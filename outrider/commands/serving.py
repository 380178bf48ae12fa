"""Runs what `outrider serve` starts: from checked options to the end of all child processes.

Knows processes, signals and what is said on the way; does not know the options' spelling.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from outrider.addresses import require_free_port
from outrider.commands.models import open_store, print_line, pull_with_progress
from outrider.draft_model_folders import find_draft_models
from outrider.errors import InputError
from outrider.exposure import plain_text_dialled
from outrider.model_folders import resolve_model
from outrider.serve_options import ServeOptions
from outrider.serve_plan import plan_services, public_url
from outrider.speculative_detection import refuse_speculators_checkpoint
from outrider.speculative_options import OPTION as SPECULATION
from outrider.supervisor import Service, Supervisor

_CHILD_COLUMN = 10


def serve_until_stopped(options: ServeOptions, cache_dir: Path | None) -> None:
    """Start all services, tell how to use them, and watch them. Raises InputError."""
    if options.model is None:
        raise InputError("MODEL: which model? Write a folder, a hub id or a known name")
    written = options.speculation()
    needs_key = options.check_security(options.host)
    require_free_port(options.host, options.port)
    store = open_store(cache_dir)

    def pull(name: str) -> Path:
        return pull_with_progress(store, name)

    model = resolve_model(options.model, store, pull)
    refuse_speculators_checkpoint(model.folder)
    speculation = find_draft_models(
        written,
        model,
        store,
        pull,
        max_model_len=options.max_model_len,
        enforce_eager=options.enforce_eager,
        option=SPECULATION,
    )
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(name: str, line: str) -> None:
        console.print(f"{name:>{_CHILD_COLUMN}} | {line}", markup=False)

    for entry in written:
        say("serve", str(entry))
    if not written:
        say("serve", "speculation is off: --no-speculation")
    dialled = [
        ("--otlp-endpoint", options.otlp_endpoint or ""),
        ("--otlp-forward", options.otlp_forward or ""),
    ]
    for warning in plain_text_dialled(dialled, options.credentials()):
        say("serve", f"warning: {warning}")
    with _runtime_dir() as runtime_dir:
        services = plan_services(options, model, runtime_dir, speculation)
        supervisor = Supervisor(services, say)
        with _signals_stop(supervisor):
            try:
                if _start(supervisor, services, console):
                    name = options.served_model_name or model.name
                    print_line(_invitation(public_url(options), name, needs_key))
                    supervisor.run()
                say("serve", "stopping")
            finally:
                supervisor.stop()


def _start(supervisor: Supervisor, services: Sequence[Service], console: Console) -> bool:
    """Start all with a progress display; whether they are ready (False: asked to stop)."""
    told: set[str] = set()
    names = ", ".join(service.name for service in services)
    with console.status(Text(f"starting {names}")) as status:

        def show(states: Sequence[tuple[str, float, bool]]) -> None:
            for name, seconds, ready in states:
                if ready and name not in told:
                    told.add(name)
                    console.print(f"{name:>{_CHILD_COLUMN}} | ready after {seconds:.1f} s")
            waiting = [f"{name} ({seconds:.0f} s)" for name, seconds, ready in states if not ready]
            status.update(Text(f"waiting for {', '.join(waiting)}; Ctrl-C stops"))

        return supervisor.start(show)


@contextlib.contextmanager
def _runtime_dir() -> Iterator[Path]:
    """A folder for sockets that only this user can enter, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-"))
    if len(str(folder)) > 60:
        # A socket's path is limited to about 100 bytes; the usual folder is too deep for one.
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="outrider-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _signals_stop(supervisor: Supervisor) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal ask `supervisor` to stop."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = [signal.signal(number, lambda *_: supervisor.request_stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def _invitation(url: str, model: str, needs_key: bool) -> str:
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "Write a Python function that adds numbers."}],
            "max_tokens": 64,
            "stream": True,
        }
    )
    key = '    -H "Authorization: Bearer $OUTRIDER_API_KEY" \\\n' if needs_key else ""
    return (
        f"\nOutrider serves {model} at {url}\nTry:\n"
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"{key}"
        f"    -d {shlex.quote(body)}\n"
        f"What the guessing is worth: {url}/dashboard\nStop with Ctrl-C.\n"
    )
