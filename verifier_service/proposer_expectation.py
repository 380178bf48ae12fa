"""What the verifier was told of a proposer before it meets it, and whether that is true.

Knows capabilities; does not know speculative configs, files or streams.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from speculation.v1 import proposer_pb2

from verifier_service.proposer_handshake import HandshakeError, HelloParameters


@dataclass(frozen=True, slots=True)
class ExpectedProposer:
    """One entry of a speculative config, as far as a proposer answers for it.

    `num_speculative_tokens` is the most drafts in one of its blocks, `options` the method's own
    options that were written down, by their names there.
    """

    method: str
    num_speculative_tokens: int
    options: Mapping[str, object] = field(default_factory=dict)

    def hello(self, hello: HelloParameters) -> HelloParameters:
        """`hello` with this proposer's own ceiling, where that is the lower one."""
        tokens = min(self.num_speculative_tokens, hello.num_speculative_tokens)
        return dataclasses.replace(hello, num_speculative_tokens=tokens)

    def check(self, capabilities: proposer_pb2.Capabilities) -> None:
        """Raises HandshakeError naming what differs, both values, and whose is whose.

        An option that the proposer does not tell is not compared.
        """
        if capabilities.method != self.method:
            raise HandshakeError(
                f"is a {capabilities.method!r} proposer; the speculative config says "
                f"{self.method!r}"
            )
        for key, expected in self.options.items():
            told = capabilities.options.get(key)
            if told is not None and _value(told) != expected:
                raise HandshakeError(
                    f"runs with {key} {told[:80]}; the speculative config says "
                    f"{json.dumps(expected)}"
                )


def _value(told: str) -> object:
    """What was told, decoded; itself where it is no JSON, which equals no option."""
    try:
        value: object = json.loads(told)
    except ValueError:
        return told
    return value
