"""Starts telemetry where it is asked for; elsewhere nothing of it is even imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.credentials import PLAIN, Credentials
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings

if TYPE_CHECKING:
    from outrider.otlp import Delivery
    from outrider.tracing import Telemetry


def start_telemetry(
    settings: TraceSettings,
    service: str,
    instance_id: str,
    *,
    credentials: Credentials = PLAIN,
    delivery: Delivery | None = None,
) -> Telemetry | None:
    """The telemetry of this process, or None where the settings want none.

    `credentials` are shown to the settings' endpoint; `delivery` takes what is emitted instead of
    it, whether there is one or not. The caller shuts it down.
    """
    if settings.level is TraceLevel.NONE or not (settings.endpoint or delivery is not None):
        return None
    from outrider.tracing import Telemetry

    return Telemetry(settings, service, instance_id, credentials=credentials, delivery=delivery)
