"""What the engine's process does before it serves: logs, proposers, the core.

Knows what may go wrong and how the edge is told; does not know what a core does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pkgutil import resolve_name

from outrider import logs
from outrider.errors import InputError
from verifier_service.attaching import attach_proposers
from verifier_service.core import CountingCore
from verifier_service.engine_process import wire
from verifier_service.engine_process.host import Host
from verifier_service.messages import DraftSource, NoDrafts
from verifier_service.proposer_state import ProposerState
from verifier_service.settings import VerifierSettings

_log = logging.getLogger(__name__)

BuildCore = Callable[[VerifierSettings, DraftSource], CountingCore]


def build(start: wire.Start, connection: Connection) -> Host | None:
    """The core that `start` asks for, served; None where the edge was told why there is none."""
    from verifier_service.engines.loading import ModelLoadError

    logs.configure(start.settings.log_level)
    try:
        return _build(start, connection)
    except ModelLoadError as error:
        answer = wire.NotReady(f"model: {error}", refused=True)
    except InputError as error:
        answer = wire.NotReady(str(error), refused=True)
    except Exception as error:
        _log.exception("the engine does not start")
        answer = wire.NotReady(
            f"the engine does not start: {type(error).__name__}: {error}", refused=False
        )
    connection.send_bytes(wire.encode(answer))
    return None


def _build(start: wire.Start, connection: Connection) -> Host:
    build_core: BuildCore = resolve_name(start.build)
    pool = attach_proposers(start.settings, start.target)
    source: DraftSource = pool or NoDrafts()
    try:
        core = build_core(start.settings, source)
    except BaseException:
        source.close()
        raise
    return Host(core, connection, pool.states if pool is not None else _nobody)


def _nobody() -> Sequence[ProposerState]:
    return ()
