"""What of each request is told, how often, and where: the options of telemetry.

Knows values and their limits; imports no SDK, so that a process without telemetry pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.addresses import parse_address
from outrider.errors import InputError
from outrider.telemetry import TraceLevel

_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Telemetry of one process.

    `endpoint` is an OTLP/gRPC receiver, `unix:PATH`, `HOST:PORT` or a URL (`https` for TLS); empty
    for none. `sample_ratio` is the share of requests traced, of those whose caller has not decided.
    `content` adds the texts of drafts and of what was emitted, which TraceLevel.DETAILED alone has
    a place for. Raises InputError naming the option, its value and what is allowed.
    """

    endpoint: str = ""
    level: TraceLevel = TraceLevel.SUMMARY
    sample_ratio: float = 1.0
    content: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.sample_ratio <= 1.0:
            raise InputError(f"--trace-sample-ratio: {self.sample_ratio} is not in 0..1")
        if self.content and self.level is not TraceLevel.DETAILED:
            raise InputError(
                f"--trace-content: texts belong to rounds, which --trace-level {self.level.value} "
                "does not tell; it needs --trace-level detailed"
            )

    @property
    def enabled(self) -> bool:
        """Whether anything is sent at all."""
        return bool(self.endpoint) and self.level is not TraceLevel.NONE

    def arguments(self) -> list[str]:
        """These settings as a subcommand takes them."""
        if self.level is TraceLevel.NONE:
            return ["--trace-level=none"]
        return [
            *([f"--otlp-endpoint={self.endpoint}"] if self.endpoint else []),
            f"--trace-level={self.level.value}",
            f"--trace-sample-ratio={self.sample_ratio}",
            *(["--trace-content"] if self.content else []),
        ]

    @property
    def detailed(self) -> bool:
        """Whether every round is told."""
        return self.level is TraceLevel.DETAILED


# Nothing is told.
UNTRACED = TraceSettings()


def parse_endpoint(value: str, option: str = "--otlp-endpoint") -> str:
    """The endpoint in the form that TraceSettings takes. Raises InputError naming `option`."""
    for scheme in _SCHEMES:
        if value.startswith(scheme):
            return scheme + parse_address(value.removeprefix(scheme).rstrip("/"), option)
    return parse_address(value, option)


def parse_level(value: str, option: str = "--trace-level") -> TraceLevel:
    """Raises InputError naming `option`, the value and the levels."""
    allowed = [level.value for level in TraceLevel]
    if value not in allowed:
        raise InputError(f"{option}: {value!r} is not one of {', '.join(allowed)}")
    return TraceLevel(value)
