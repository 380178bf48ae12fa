"""Whether an engine is right: steps against one pass over all, right drafts, equal bits.

Knows chunks, verdicts and the target's tokenizer; does not look inside the engine. An answer that
was decoded token by token is captured steps' where the engine captures; the same answer offered as
drafts behind its prompt, in one step, is no captured shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import eq
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_engine_sequences import Sequences, made_up, samplings

if TYPE_CHECKING:
    from verifier_service.engines.base import Chunk, Verdict
    from verifier_service.engines.torch_engine import TorchEngine
    from verifier_service.messages import Sampling, TokenLogprob

TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time there was a ferry that crossed the river every",
)
CHOICES = ("greedy", "random")
# Of how many neighbours, and in which pieces of the prompt, a row's bits must not depend.
NEIGHBOURS = (7, 31)
CONTEXT = 300
PIECE = 100
PLACES = 4


class Checks:
    """One engine's checks. `answers` are filled by `all`: those of each choice, by prompt."""

    def __init__(
        self, engine: TorchEngine, rows: Sequences, model: str, drafts: int, new_tokens: int
    ) -> None:
        self._engine = engine
        self._model = model
        self._rows = rows
        self._drafts = min(drafts, new_tokens - 1)
        self._new_tokens = new_tokens
        self.answers: dict[str, list[list[int]]] = {}

    def all(self) -> dict[str, list[int]]:
        """Of each check how many hold, of how many."""
        prompts = self._prompts()
        found: dict[str, list[int]] = {}
        for name in CHOICES:
            sampling = samplings()[name]
            answers = self.answers[name] = self._decode(prompts, sampling, ahead=False)
            begun = self._decode(prompts, sampling, ahead=True)
            accepted = self._accepted(prompts, answers, sampling)
            whole = [
                self._agreeing(prompt, answer, sampling)
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
            total = self._new_tokens * len(prompts)
            found[f"{name}: right drafts accepted"] = [accepted, self._drafts * len(prompts)]
            found[f"{name}: tokens equal those of one step over them all"] = [sum(whole), total]
            found[f"{name}: tokens equal with steps begun ahead"] = [
                sum(map(int, map(eq, chain(*answers), chain(*begun)))),
                total,
            ]
        return found | self._equal_bits()

    def _prompts(self) -> list[list[int]]:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(self._model)
        texts = TEXTS[: max(1, min(len(TEXTS), self._rows.most))]
        return [list(tokenizer.encode(text)) for text in texts]

    def _run(self, chunks: list[Chunk]) -> list[Verdict]:
        verdicts = self._engine.run(chunks)
        assert all(verdict is not None for verdict in verdicts)
        return [verdict for verdict in verdicts if verdict is not None]

    def _fill(self, row: int, ids: list[int], sampling: Sampling) -> None:
        """Compute the keys of `ids`, without choosing."""
        self._engine.run([self._rows.chunk(row, ids, 0, None, sampling)])

    def _decode(
        self, prompts: Sequence[list[int]], sampling: Sampling, ahead: bool
    ) -> list[list[int]]:
        """Answers token by token, all prompts beside each other."""
        sequences = [list(prompt) for prompt in prompts]
        for row, prompt in enumerate(prompts):
            self._fill(row, prompt[:-1], sampling)
        self._rows.decode(sequences, sampling, self._new_tokens, ahead)
        return [ids[len(prompt) :] for ids, prompt in zip(sequences, prompts, strict=True)]

    def _accepted(
        self, prompts: Sequence[list[int]], answers: Sequence[list[int]], sampling: Sampling
    ) -> int:
        """Of the answers' own first tokens, offered as drafts, how many are accepted."""
        chunks = []
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            self._fill(row, prompt[:-1], sampling)
            drafts = answer[: self._drafts]
            chunks.append(
                self._rows.chunk(
                    row, [prompt[-1], *drafts], len(prompt) - 1, self._drafts, sampling
                )
            )
        return sum(verdict.accepted for verdict in self._run(chunks))

    def _agreeing(self, prompt: list[int], answer: list[int], sampling: Sampling) -> int:
        """How many leading tokens of the answer one step over all of it would choose, too."""
        ids = [*prompt, *answer[:-1]]
        (verdict,) = self._run([self._rows.chunk(0, ids, 0, len(answer) - 1, sampling)])
        same = 0
        for mine, theirs in zip(verdict.tokens, answer, strict=False):
            if mine != theirs:
                break
            same += 1
        return same

    def _equal_bits(self) -> dict[str, list[int]]:
        """Of `PLACES` rows of logits, how many are the same bits alone and in other company."""
        vocabulary = self._engine.model.vocab_size
        asking = replace(samplings()["greedy"], logprobs=min(4, vocabulary - 1))
        context = min(CONTEXT, self._rows.max_model_len - 40)
        ids = made_up(0, context, vocabulary)

        def rows(others: list[Chunk], piece: int = context) -> list[TokenLogprob]:
            """At every place, behind a prompt that was read in pieces of so many tokens."""
            for begin in range(0, context, piece):
                part = ids[begin : min(begin + piece, context)]
                self._engine.run([self._rows.chunk(0, part, begin, None, asking)])
            found = []
            # From behind: what is written at one place is not read at the next.
            for at in range(context - 1, context - 1 - PLACES, -1):
                mine = self._rows.chunk(0, ids[at : at + 1], at, 0, asking)
                found.append(self._run([mine, *others])[0].logprobs[0])
            return found

        alone = rows([])
        company = {
            f"beside {count} others": rows(self._neighbours(count, vocabulary, asking))
            for count in NEIGHBOURS
            if count < self._rows.most
        }
        company[f"after a prompt in pieces of {PIECE}"] = rows([], PIECE)
        return {
            f"rows of equal bits {where}": [sum(map(int, map(eq, found, alone))), PLACES]
            for where, found in company.items()
        }

    def _neighbours(self, count: int, vocabulary: int, sampling: Sampling) -> list[Chunk]:
        """Other sequences of differing contexts, with none to three drafts."""
        chunks = []
        for row in range(1, count + 1):
            context = 16 + 8 * row % 200
            self._fill(row, made_up(row, context, vocabulary), sampling)
            drafts = row % 4
            ids = made_up(row + 1, drafts + 1, vocabulary)
            chunks.append(self._rows.chunk(row, ids, context, drafts, sampling))
        return chunks
