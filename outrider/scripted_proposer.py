"""A proposer for protocol tests: mirrors sequences strictly and answers as it is told.

Knows the protocol's rules from the proposer's side and raises ProtocolError where a verifier
breaks one. What it drafts, and how its answers are spoiled, are functions that a test hands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from speculation.v1 import proposer_pb2, types_pb2


class ProtocolError(Exception):
    """The verifier broke a rule of the protocol."""


@dataclass(slots=True)
class HeldSequence:
    """A sequence as this proposer was told it."""

    epoch: int
    ids: list[int] = field(default_factory=list)
    complete: bool = False
    prompt_length: int = 0
    sampling: types_pb2.DraftSampling | None = None
    cache_salt: str = ""


Draft = Callable[[Sequence[int], int], Sequence[int]]
Spoil = Callable[[proposer_pb2.ProposeResponse], Iterable[proposer_pb2.ProposeResponse | bytes]]
Outcomes = Callable[[Sequence[int]], Iterable[tuple[Sequence[int], Sequence[int]]]]
Ends = Callable[[Sequence[int]], Sequence[tuple[int, int]] | None]


def count_up(ids: Sequence[int], k: int) -> Sequence[int]:
    """Drafts each last id's successors."""
    return [ids[-1] + 1 + i for i in range(k)]


def capabilities(name: str = "scripted") -> proposer_pb2.Capabilities:
    """What a faultless proposer of any vocabulary says of itself."""
    return proposer_pb2.Capabilities(
        protocol_version=1,
        instance_id=f"{name}-instance",
        name=name,
        method="ngram",
        max_sequences=64,
        max_draft_tokens=16,
        q_forms=[types_pb2.Q_FORM_ONE_HOT],
        first_position=types_pb2.FIRST_POSITION_AFTER_COMMITTED,
        lookahead=True,
    )


class ScriptedProposer:
    """A process that serves any number of streams, one after the other; a `PeerFactory`.

    `draft(ids, k)` gives a block's ids; `outcomes(ids)` pairs of (outcome ids, draft ids) to push
    ahead; `ends(ids)` what it claims to be all ends with a draft, None for no claim; `spoil`
    replaces each answer by any messages or bytes; `faults` are sequence ids to call unknown in the
    next answer. `hellos`, `steps`, `closes` and `sequences` are what it was told.
    """

    def __init__(
        self,
        *,
        welcome: proposer_pb2.Capabilities | None = None,
        draft: Draft = count_up,
        outcomes: Outcomes | None = None,
        ends: Ends | None = None,
        spoil: Spoil | None = None,
    ) -> None:
        self.welcome = welcome or capabilities()
        self.draft = draft
        self.outcomes = outcomes
        self.ends = ends
        self.spoil = spoil
        self.faults: list[int] = []
        self.hellos: list[proposer_pb2.Hello] = []
        self.steps: list[proposer_pb2.Step] = []
        self.closes: list[tuple[int, bool]] = []
        self.sequences: dict[int, HeldSequence] = {}
        self.forgotten: set[int] = set()
        self.reply: Callable[[bytes], None] | None = None

    def __call__(
        self, reply: Callable[[bytes], None], end: Callable[[str, str], None]
    ) -> ScriptedProposer:
        self.sequences = {}
        self.reply = reply
        return self

    def received(self, data: bytes) -> None:
        request = proposer_pb2.ProposeRequest.FromString(data)
        if request.WhichOneof("message") == "hello":
            self.hellos.append(request.hello)
            welcome = proposer_pb2.Welcome(capabilities=self.welcome)
            self._say(proposer_pb2.ProposeResponse(welcome=welcome))
            return
        self.steps.append(request.step)
        self._answer(request.step)

    def closed(self) -> None:
        self.reply = None

    def push(self, message: proposer_pb2.ProposeResponse | bytes) -> None:
        """Send a message of the test's own making."""
        if self.reply is None:
            raise ProtocolError("no stream is open")
        self.reply(message if isinstance(message, bytes) else message.SerializeToString())

    def _answer(self, step: proposer_pb2.Step) -> None:
        drafts = proposer_pb2.Drafts(step_id=step.step_id)
        lookahead = proposer_pb2.Lookahead(step_id=step.step_id)
        closing = sum(close.sequence_id in self.sequences for close in step.closes)
        for update in step.updates:
            held = self._apply(update, closing)
            if update.sequence_id in self.faults:
                self.faults.remove(update.sequence_id)
                del self.sequences[update.sequence_id]
                self.forgotten.add(update.sequence_id)
                drafts.faults.add(
                    sequence_id=update.sequence_id, epoch=update.epoch, reason="forgotten"
                )
            elif update.max_draft_tokens:
                if not held.complete:
                    raise ProtocolError("drafts asked of a sequence whose open goes on")
                drafts.blocks.append(self._block(update, held.ids, update.max_draft_tokens))
                if (ends := self.ends(held.ids) if self.ends else None) is not None:
                    lookahead.complete.add(
                        sequence_id=update.sequence_id,
                        epoch=update.epoch,
                        base_length=len(held.ids),
                        accepted=[kept for kept, _ in ends],
                        token_ids=[token for _, token in ends],
                    )
                for outcome, ids in self.outcomes(held.ids) if self.outcomes else ():
                    lookahead.blocks.add(
                        base_length=len(held.ids),
                        outcome_token_ids=outcome,
                        block=proposer_pb2.DraftBlock(
                            sequence_id=update.sequence_id,
                            epoch=update.epoch,
                            base_length=len(held.ids) + len(outcome),
                            token_ids=ids,
                            q_form=types_pb2.Q_FORM_ONE_HOT,
                        ),
                    )
        for close in step.closes:
            self.closes.append((close.sequence_id, close.finished))
            known = self.sequences.pop(close.sequence_id, None) is not None
            if not known and close.sequence_id not in self.forgotten:
                raise ProtocolError(f"close of unknown sequence {close.sequence_id}")
        self._say(proposer_pb2.ProposeResponse(drafts=drafts))
        if lookahead.blocks or lookahead.complete:
            self._say(proposer_pb2.ProposeResponse(lookahead=lookahead))

    def _block(
        self, update: proposer_pb2.SequenceUpdate, ids: Sequence[int], k: int
    ) -> proposer_pb2.DraftBlock:
        return proposer_pb2.DraftBlock(
            sequence_id=update.sequence_id,
            epoch=update.epoch,
            base_length=len(ids),
            token_ids=self.draft(ids, k),
            q_form=types_pb2.Q_FORM_ONE_HOT,
        )

    def _apply(self, update: proposer_pb2.SequenceUpdate, closing: int) -> HeldSequence:
        held = self.sequences.get(update.sequence_id)
        if update.WhichOneof("change") == "open":
            change = update.open
            if change.offset == 0:
                if held is not None and update.epoch <= held.epoch:
                    raise ProtocolError(f"open with epoch {update.epoch} after {held.epoch}")
                room = self.welcome.max_sequences + closing
                if held is None and len(self.sequences) >= room:
                    raise ProtocolError("more sequences than this proposer can hold")
                held = self.sequences[update.sequence_id] = HeldSequence(update.epoch)
            elif held is None or held.complete or change.offset != len(held.ids):
                raise ProtocolError(f"open chunk at {change.offset} does not continue the open")
            held.prompt_length = change.prompt_length
            held.sampling = change.sampling
            held.cache_salt = change.cache_salt
            held.complete = not change.more
            ids = change.token_ids
        else:
            if held is None or not held.complete:
                raise ProtocolError(f"commit to sequence {update.sequence_id}, which is not open")
            if update.commit.base_length != len(held.ids):
                raise ProtocolError(
                    f"commit at {update.commit.base_length} to a length of {len(held.ids)}"
                )
            ids = update.commit.token_ids
        if update.epoch != held.epoch:
            raise ProtocolError(f"epoch {update.epoch} where {held.epoch} is open")
        held.ids.extend(ids)
        limit = self.welcome.context_limit
        if limit and len(held.ids) + update.max_draft_tokens > limit:
            raise ProtocolError(f"{len(held.ids)} ids and drafts over the limit of {limit}")
        if update.max_draft_tokens > self.welcome.max_draft_tokens:
            raise ProtocolError(f"{update.max_draft_tokens} drafts asked, over the limit")
        return held

    def _say(self, response: proposer_pb2.ProposeResponse) -> None:
        if self.spoil is None or response.HasField("welcome"):
            self.push(response)
            return
        for message in self.spoil(response):
            self.push(message)
