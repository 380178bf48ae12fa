"""The `draft_model` method: a small causal LM says what it would answer itself.

Knows texts, the key cache and an engine; does not know the protocol, nor how a model is loaded. The
first step of a draft reads, for every sequence that is asked about, the ids it has not read yet;
each further one reads the id just chosen, all sequences in one batch. What the model says of a text
does not change while the text goes on as it said, so look-ahead is the same chain, grown further.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from proposer_service.draft_model.blocks import KeyBlocks
from proposer_service.draft_model.text import DraftText
from proposer_service.proposers.base import NO_DRAFT, Draft, Outcome
from proposer_service.proposers.batch import BatchProposer, Drafted, TargetSampling, Wanted
from verifier_service.engines.base import Chunk, Engine, Verdict

# Forwards in a row that fail, of an engine that will do nothing else any more.
_MOST_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Budgets:
    """Ids that one forward reads at most.

    `answer` while a verifier waits: sequences with more to read have no draft in this step.
    `piece` when none does, or none of those asked about: how long the server can be deaf.
    """

    answer: int = 512
    piece: int = 512

    def __post_init__(self) -> None:
        for field in ("answer", "piece"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: must be at least 1")


@dataclass(frozen=True, slots=True)
class _Goal:
    """A sequence whose ids, true and drafted, are to become `length`."""

    text: DraftText
    length: int


class DraftModelProposer(BatchProposer):
    """Drafts by an engine. `sample_method`: greedy, probabilistic, or None to follow the rule.

    A text with an id that the model cannot read, or one as long as its context, has no drafts.
    `on_death` is told why nothing can be drafted any more: of a card that has failed once, all
    further work fails.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        sample_method: str | None = None,
        budgets: Budgets | None = None,
        device_uuid: str = "",
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        self._engine = engine
        self._budgets = budgets or Budgets()
        self._sample_method = sample_method
        self._vocabulary_size = engine.model.vocab_size
        self._limit = engine.model.max_model_len
        self._blocks = KeyBlocks(engine.cache)
        self._texts: dict[int, DraftText] = {}
        # Texts with more to read than an answer waits for, longest waiting first.
        self._waiting: dict[int, DraftText] = {}
        self._round = 0
        self._failures = 0
        self.on_death = on_death
        self.device_uuid = device_uuid

    @property
    def evictions(self) -> int:
        """How often a sequence's keys gave way to another's."""
        return self._blocks.evictions

    @property
    def gives_q(self) -> bool:
        """Whether drafts may be drawn from a distribution that comes with them."""
        return self._sample_method == "probabilistic"

    def refusal(self, *, coupled: bool, takes_q: bool) -> str:
        """See `BatchProposer.refusal`."""
        if self.gives_q and not coupled and not takes_q:
            return (
                "draft_sample_method 'probabilistic' gives drafts with their q, which this "
                "verifier does not take; leave it out, or write 'greedy'"
            )
        return ""

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        """See `Proposer.open`. No text shapes another's draft, so `salt` separates nothing."""
        text = self._texts[sequence_id] = DraftText(sequence_id, ids, self._round)
        self._note(text, ids)

    def heed(self, sequence_id: int, target: TargetSampling) -> None:
        """See `BatchProposer.heed`. Noise that is not the target's would only do harm."""
        noisy = target.coupled and self._sample_method != "greedy"
        drawn = not target.coupled and target.takes_q and self.gives_q
        self._texts[sequence_id].heed(target, noisy=noisy, drawn=drawn)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        """See `Proposer.extend`."""
        text = self._texts[sequence_id]
        text.commit(ids)
        self._note(text, ids)

    def close(self, sequence_id: int, finished: bool) -> None:
        """See `Proposer.close`."""
        self._waiting.pop(sequence_id, None)
        self._blocks.release(self._texts.pop(sequence_id))

    def propose_many(self, wanted: Sequence[Wanted]) -> Generator[None, None, list[Draft]]:
        """See `BatchProposer.propose_many`."""
        self._round += 1
        goals = []
        for sequence_id, most in wanted:
            text = self._texts[sequence_id]
            text.used = self._round
            goals.append(_Goal(text, text.length + most))
        # The most of them that one forward can serve; the longest wait, for nobody else's sake.
        room = self._budgets.answer
        served = []
        for goal in sorted(self._unfinished(goals), key=lambda goal: goal.text.unread):
            room -= goal.text.unread
            if room >= 0:
                served.append(goal)
            else:
                self._wait(goal.text)
        for _ in self._grow(served):
            yield
        return [self._draft(self._texts[number], most) for number, most in wanted]

    def prepare(self, drafted: Sequence[Drafted]) -> Iterator[list[tuple[int, Outcome]]]:
        """The round's end in which all drafts are accepted and the target goes on as the model.

        The chain behind it is what the next round drafts, if this is how it ends. Any other end
        needs another reading, which is what the answer is for. Drafts with a q are drawn anew.
        """
        left = {one.sequence_id: one for one in drafted if one.draft.ids and not one.draft.q}
        goals = [
            _Goal(text, text.length + len(draft.ids) + 1 + most)
            for text, draft, most in ((self._texts[n], d, m) for n, d, m in left.values())
        ]
        yield self._outcomes(left)
        for _ in self._grow(self._unfinished(goals)):
            yield self._outcomes(left)

    def catch_up(self) -> Iterator[None]:
        """See `BatchProposer.catch_up`: prompts, in the order in which they came."""
        while self._waiting:
            room, parts = self._budgets.piece, []
            for text in list(self._waiting.values()):
                count = min(room, text.unread)
                if not count:
                    break
                # Else two that wait could take each other's blocks for ever.
                text.used = self._round
                if text.unread < 2 or not self._cover(text, text.read + count):
                    del self._waiting[text.number]
                    continue
                parts.append((text, count))
                room -= count
            # One may have taken the blocks of another since that got them.
            parts = [(t, count) for t, count in parts if self._blocks.holds(t, t.read + count)]
            if not parts:
                return
            chunks = [_chunk(text, count) for text, count in parts]
            for (text, _), chunk, verdict in zip(parts, chunks, self._run(chunks), strict=True):
                if verdict is None:
                    text.read += len(chunk.ids)
                else:
                    _take(text, verdict)
                    del self._waiting[text.number]
            yield

    def shut_down(self) -> None:
        """Release the engine's memory."""
        self._engine.close()

    def _note(self, text: DraftText, ids: Sequence[int]) -> None:
        """See whether the model can read a text with these ids; if so, the long ones wait."""
        if min(ids) < 0 or max(ids) >= self._vocabulary_size or text.length >= self._limit:
            text.is_readable = False
        if not text.is_readable:
            self._waiting.pop(text.number, None)
            self._blocks.release(text)
        elif text.unread > self._budgets.answer:
            self._wait(text)

    def _wait(self, text: DraftText) -> None:
        self._waiting.setdefault(text.number, text)

    def _cover(self, text: DraftText, tokens: int) -> bool:
        return self._blocks.cover(text, tokens, self._round)

    def _unfinished(self, goals: Sequence[_Goal]) -> list[_Goal]:
        """The goals that the model can come nearer to, none beyond its context."""
        within = [_Goal(goal.text, min(goal.length, self._limit)) for goal in goals]
        return [goal for goal in within if goal.text.is_readable and not _is_reached(goal)]

    def _grow(self, goals: Sequence[_Goal]) -> Iterator[None]:
        """Grow the chains to their goals, a forward for each item; fewer where blocks run out."""
        goals = [goal for goal in goals if self._cover(goal.text, goal.length)]
        # Between two forwards another stream may have closed a sequence, or needed its blocks.
        while goals := [goal for goal in goals if self._may_grow(goal)]:
            chunks = [_chunk(goal.text, goal.text.unread) for goal in goals]
            # Then the same sequences go on: the device may begin with that before the host asks.
            sure = all(len(goal.text.ids) + 1 < goal.length for goal in goals)
            for goal, verdict in zip(goals, self._run(chunks, sure=sure), strict=True):
                if verdict is not None:
                    _take(goal.text, verdict)
            yield

    def _run(self, chunks: list[Chunk], *, sure: bool = False) -> list[Verdict | None]:
        """One forward; if it is `sure` that the same sequences go on, the next begins at once."""
        try:
            verdicts = self._engine.run(chunks, goes_on=_always if sure else None, sure=sure)
        except Exception as error:
            self._failures += 1
            if self._failures == _MOST_FAILURES and self.on_death is not None:
                self.on_death(f"{type(error).__name__}: {error}")
            raise
        self._failures = 0
        return verdicts

    def _may_grow(self, goal: _Goal) -> bool:
        text = goal.text
        known = self._texts.get(text.number) is text
        return known and not _is_reached(goal) and self._blocks.holds(text, goal.length)

    def _draft(self, text: DraftText, most: int) -> Draft:
        chain = text.chain[:most]
        return Draft(tuple(chain), q=tuple(text.q[:most])) if chain else NO_DRAFT

    def _outcomes(self, left: dict[int, Drafted]) -> list[tuple[int, Outcome]]:
        """Those that are known by now, taken out of `left`."""
        found = []
        for number, one in list(left.items()):
            end = len(one.draft.ids) + 1
            chain = tuple(self._texts[number].chain)
            if len(chain) >= end + one.max_draft_tokens:
                draft = Draft(chain[end : end + one.max_draft_tokens])
                found.append((number, Outcome(chain[:end], draft)))
                del left[number]
        return found


def _is_reached(goal: _Goal) -> bool:
    return goal.text.stuck or len(goal.text.ids) >= goal.length


def _chunk(text: DraftText, count: int) -> Chunk:
    """The next `count` unread ids; what follows is told where they are the last."""
    end = text.read + count
    return Chunk(
        text.ids[text.read : end],
        text.read,
        text.blocks,
        0,
        end == len(text.ids),
        text.sampling,
        sequence_ids=text.ids,
    )


def _take(text: DraftText, verdict: Verdict) -> None:
    """Grow a text, all read, by what the model says follows."""
    if text.drawing is None:
        text.grow(verdict.tokens[-1])
    else:
        text.draw(verdict.logprobs[-1].top)


def _always(verdicts: Sequence[Verdict]) -> bool:
    return True
