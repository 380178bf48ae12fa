"""What a client did wrong, or what it cannot have now, in one sentence.

Knows status codes and metadata keys; does not know how a request is checked.
"""

from __future__ import annotations

import grpc

# Trailing metadata beside the status: the OpenAI parameter at fault, and OpenAI's error code.
FIELD_KEY = "outrider-field"
CODE_KEY = "outrider-code"

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"

# Status text travels in HTTP/2 headers, whose size peers limit.
MAX_MESSAGE_CHARACTERS = 1000


class RequestError(Exception):
    """Refuses a request. The message names the field, its value and what is allowed.

    `field` is the OpenAI parameter's name, empty where no parameter is at fault; `code` an
    OpenAI error code, where there is one that clients look for.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        code: str = "",
        status: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    ) -> None:
        super().__init__(message)
        self.message = shorten(message, MAX_MESSAGE_CHARACTERS)
        self.field = field
        self.code = code
        self.status = status

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata that tells the gateway what the text tells a human."""
        pairs = ((FIELD_KEY, self.field), (CODE_KEY, self.code))
        return tuple((key, value) for key, value in pairs if value)


def shorten(text: str, limit: int = 80) -> str:
    """The text, or its beginning with an ellipsis where it is longer than `limit`."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
