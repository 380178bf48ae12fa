"""One request's log-probabilities, from the core's outputs to the protocol's messages.

Knows what was asked for, and the bytes of tokens; does not know how the numbers were made. Log-
probabilities that were asked for and did not come are an error here, never an answer without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from speculation.v1 import verifier_pb2

from verifier_service.messages import Output, Sampling, TokenLogprob


class LogprobMessages:
    """The log-probabilities of one answer.

    `token_bytes` gives the UTF-8 of a single id. Those of the prompt are gathered until the answer
    begins: they come with several outputs, since a long prompt is computed in chunks.
    """

    __slots__ = ("_prompt", "_prompt_ids", "_sampling", "_token_bytes")

    def __init__(
        self,
        sampling: Sampling,
        prompt_ids: Sequence[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._sampling = sampling
        self._prompt_ids = prompt_ids if sampling.prompt_logprobs >= 0 else ()
        self._token_bytes = token_bytes
        self._prompt: list[verifier_pb2.TokenLogprob] = []

    def take(self, output: Output) -> None:
        """Keep what an output tells about the prompt; check that what was asked for is there.

        Raises ValueError where it is not.
        """
        self._prompt.extend(self.messages(output.prompt_logprobs))
        told, emitted = len(output.logprobs), len(output.token_ids)
        if told != (emitted if self._sampling.logprobs >= 0 else 0):
            raise ValueError(f"{emitted} tokens came with {told} log-probabilities")
        missing = max(len(self._prompt_ids) - 1, 0) - len(self._prompt)
        if emitted and missing:
            raise ValueError(f"{missing} log-probabilities of the prompt did not come")

    def messages(self, logprobs: Sequence[TokenLogprob]) -> list[verifier_pb2.TokenLogprob]:
        """As the protocol has them."""
        text = self._token_bytes
        return [
            verifier_pb2.TokenLogprob(
                token_id=entry.token_id,
                logprob=entry.logprob,
                rank=entry.rank,
                token_bytes=text(entry.token_id),
                top=[
                    verifier_pb2.TopLogprob(token_id=i, logprob=value, token_bytes=text(i))
                    for i, value in entry.top
                ],
            )
            for entry in logprobs
        ]

    def begin(self, started: verifier_pb2.Started) -> None:
        """Put what is known of the prompt into the answer's first message, and forget it."""
        if not self._prompt_ids:
            return
        started.prompt_token_ids.extend(self._prompt_ids)
        started.first_token_bytes = self._token_bytes(self._prompt_ids[0])
        started.prompt_logprobs.extend(self._prompt)
        # Later outputs owe nothing of the prompt.
        self._prompt, self._prompt_ids = [], ()
