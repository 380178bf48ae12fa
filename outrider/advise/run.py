"""From a traffic file to a report: the order of things.

Knows the parts; what each does is theirs. Shows nothing itself: `progress` is told how far it is.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.advise.advice import Advice, Choice, advise, choices
from outrider.advise.costs import StepCost, assumed_cost
from outrider.advise.fields import BadLineError
from outrider.advise.generating import Generator
from outrider.advise.live import LiveProposer, ask_capabilities
from outrider.advise.methods import Method, Replayed, replay_all
from outrider.advise.served import VerifierFacts, ask_verifier, is_http, speaks_outrider
from outrider.advise.spool import Spool
from outrider.advise.tokenizing import Tokenizing
from outrider.advise.traffic import Recorded, parse_line, read_lines
from outrider.credentials import PLAIN, Credentials
from outrider.errors import InputError
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_link import GrpcTransport

# Told (stage, done, of how many); the last is 0 where nobody knows.
Progress = Callable[[str, int, int], None]
_MAX_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked, checked already.

    `ks` rise. `model` is the target's folder, `url` a server's URL or a verifier's address,
    `proposers` are dialled, and where `live` also those that the verifier behind `url` dials.
    `limit` 0 takes the whole file.
    """

    traffic: Path
    methods: tuple[Method, ...]
    ks: tuple[int, ...]
    sequences: tuple[int, ...]
    model: Path | None = None
    url: str | None = None
    step_cost: StepCost | None = None
    draft_wait_ms: float = 0.0
    live: bool = False
    proposers: tuple[str, ...] = ()
    skip_bad_lines: bool = False
    limit: int = 0
    max_tokens: int = 256
    concurrency: int = 4
    served_model: str | None = None
    api_key: str | None = None
    credentials: Credentials = PLAIN


@dataclass(slots=True)
class Counts:
    """What was read. `first_skipped` is the first skipped line's message."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    generated: int = 0
    skipped: int = 0
    first_skipped: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a report shows."""

    counts: Counts
    cost: StepCost
    replayed: tuple[Replayed, ...]
    choices: tuple[Choice, ...]
    advice: Advice
    draft_wait_ms: float


def run(options: Options, progress: Progress) -> Outcome:
    """Read, generate what is missing, replay, judge. Raises InputError and OperationError."""
    facts = _facts(options)
    cost = _cost(options, facts)
    tokenizing = Tokenizing(options.model)
    with Spool() as traffic:
        counts = _fill(traffic, options, tokenizing, progress)
        replayed = replay_all(
            options.methods,
            options.ks,
            traffic,
            lambda done, total: progress("replay", done, total),
        )
        replayed += _replay_live(options, facts, tokenizing, traffic, progress)
    among = choices(replayed, cost, options.sequences, options.draft_wait_ms)
    return Outcome(
        counts=counts,
        cost=cost,
        replayed=tuple(replayed),
        choices=tuple(among),
        advice=advise(among, cost, options.sequences),
        draft_wait_ms=options.draft_wait_ms,
    )


def _facts(options: Options) -> VerifierFacts | None:
    """What the verifier behind --url says, where it is needed at all."""
    if options.url is None:
        if options.live and not options.proposers:
            raise InputError("--live: give --proposer ADDRESS, or --url of a server that has some")
        return None
    for_live = options.live and (not options.proposers or options.model is None)
    for_cost = options.step_cost is None and (
        not is_http(options.url) or speaks_outrider(options.url, options.api_key)
    )
    if not for_live and not for_cost:
        return None
    return ask_verifier(options.url, options.api_key, options.credentials)


def _cost(options: Options, facts: VerifierFacts | None) -> StepCost:
    if options.step_cost is not None:
        return options.step_cost
    if facts is not None and facts.step_cost_ms:
        return StepCost("verifier", facts.step_cost_ms)
    return assumed_cost()


def _fill(traffic: Spool, options: Options, tokenizing: Tokenizing, progress: Progress) -> Counts:
    counts = Counts()
    recorded: Iterable[Recorded | BadLineError] = _parsed(options.traffic)
    generator = None
    with contextlib.ExitStack() as stack:
        if options.url is not None and is_http(options.url):
            generator = stack.enter_context(
                Generator(
                    options.url,
                    model=options.served_model,
                    max_tokens=options.max_tokens,
                    concurrency=options.concurrency,
                    api_key=options.api_key,
                )
            )
            recorded = generator.complete(recorded)
        for one in recorded:
            try:
                if isinstance(one, BadLineError):
                    raise one
                traffic.add(tokenizing.request(one))
            except BadLineError as error:
                _skip(error, options, counts)
                continue
            progress("read", len(traffic), options.limit)
            if len(traffic) == options.limit:
                break
    if not len(traffic):
        skipped = f"; {counts.skipped} bad lines were skipped, first: {counts.first_skipped}"
        raise InputError(
            f"TRAFFIC: {options.traffic} holds no request{skipped if counts.skipped else ''}"
        )
    counts.generated = generator.generated if generator is not None else 0
    counts.requests = len(traffic)
    counts.prompt_tokens = traffic.prompt_tokens
    counts.output_tokens = traffic.output_tokens
    return counts


def _parsed(path: Path) -> Iterator[Recorded | BadLineError]:
    for number, line in read_lines(path):
        try:
            yield from parse_line(number, line)
        except BadLineError as error:
            yield error


def _skip(error: BadLineError, options: Options, counts: Counts) -> None:
    if not options.skip_bad_lines:
        raise InputError(
            f"TRAFFIC: {options.traffic.name} {error} (--skip-bad-lines leaves such lines out)"
        ) from error
    counts.skipped += 1
    counts.first_skipped = counts.first_skipped or str(error)


def _replay_live(
    options: Options,
    facts: VerifierFacts | None,
    tokenizing: Tokenizing,
    traffic: Spool,
    progress: Progress,
) -> list[Replayed]:
    addresses = options.proposers or (facts.proposers if facts and options.live else ())
    if options.live and not addresses:
        raise InputError("--live: the verifier behind --url has no proposers; give --proposer")
    if not addresses:
        return []
    hello = _hello(facts, tokenizing)
    total, done = len(addresses) * len(traffic), 0

    def report() -> None:
        nonlocal done
        done += 1
        progress("live", done, total)

    result = []
    for address in addresses:
        live = LiveProposer(
            address,
            ask_capabilities(address, options.credentials),
            hello,
            options.ks,
            transport=GrpcTransport(options.credentials),
        )
        with live.connected():
            result.append(live.replay_all(traffic, report))
    return result


def _hello(facts: VerifierFacts | None, tokenizing: Tokenizing) -> HelloParameters:
    """What a verifier of this target would say of itself; K is the proposer's business."""
    if facts is not None:
        fingerprint = facts.vocabulary_fingerprint
        size, context, eos = facts.vocabulary_size, facts.context_limit, facts.eos_token_ids
    elif tokenizing.model is not None:
        from verifier_service.target_facts import read_target_facts

        target = read_target_facts(tokenizing.model, None)
        fingerprint = tokenizing.text.fingerprint
        size, context, eos = target.vocab_size, target.max_model_len, target.eos_token_ids
    else:
        raise InputError("--live: proposers ask whose ids these are; give --model or --url")
    return HelloParameters(
        verifier_instance_id=f"advise-{uuid.uuid4().hex}",
        vocabulary_fingerprint=fingerprint,
        vocabulary_size=size,
        eos_token_ids=eos,
        max_sequences=_MAX_SEQUENCES,
        num_speculative_tokens=1,
        context_limit=context,
        # Nothing is to be prepared ahead: every draft is asked for.
        on_cpu=True,
    )
