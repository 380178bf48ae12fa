"""A verifier's telemetry from its start to its end; None where it tells nothing.

Knows which parts there are; imports them only where the settings ask for telemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.starting_telemetry import start_telemetry
from outrider.telemetry import VERIFIER_SERVICE
from verifier_service.accounting import Ledger
from verifier_service.backend import Backend
from verifier_service.settings import VerifierSettings

if TYPE_CHECKING:
    from outrider.tracing import Telemetry
    from verifier_service.tracing import RequestTracer


@dataclass(frozen=True, slots=True)
class VerifierTracing:
    """The tracer of requests, and the totals as metrics once there are any."""

    telemetry: Telemetry
    requests: RequestTracer
    served_model_name: str

    def observe(self, ledger: Ledger, backend: Backend) -> None:
        """Send these totals from now on."""
        from verifier_service.tracing_meters import VerifierMeters

        VerifierMeters(self.telemetry.meter(), ledger, backend, self.served_model_name)

    def shutdown(self) -> None:
        """Send what is left. Blocks for seconds at most."""
        self.telemetry.shutdown()


def start_tracing(settings: VerifierSettings, instance_id: str) -> VerifierTracing | None:
    """What `settings.trace` asks for."""
    telemetry = start_telemetry(
        settings.trace, VERIFIER_SERVICE, instance_id, credentials=settings.credentials
    )
    if telemetry is None:
        return None
    from verifier_service.tracing import RequestTracer

    tracer = RequestTracer(
        telemetry.tracer,
        settings.trace,
        instance_id=instance_id,
        model=settings.served_model_name,
        rule=settings.rejection_rule,
    )
    return VerifierTracing(telemetry, tracer, settings.served_model_name)
