"""Which method and K to take, and whether it is worth turning on, in a sentence.

Knows sums and expected speed-ups; knows no tokens and no output format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.advise.costs import StepCost
from outrider.advise.methods import Replayed
from outrider.advise.replay import Tally
from outrider.advise.speedup import speedup

# Asking for drafts costs some of a gain that is not in the sum (docs/benchmarks/cpu.md has loads
# that lost up to 7 % by it): a smaller one is none.
WORTH = 1.10
# Tokens of a step below which the text itself repeats too little, whatever verifying costs.
_LITTLE = 1.25
# Draft acceptance rate below which another K helps less than another method.
_HALF = 0.5
_SLOWER = 0.995
# What guesses where a text does not repeat itself.
_DRAFT_MODEL = "a draft model (method draft_model; --proposer ADDRESS judges a running one)"


@dataclass(frozen=True, slots=True)
class Choice:
    """One method at one K, and its expected speed-up by number of sequences at once."""

    replayed: Replayed
    tally: Tally
    speedups: dict[int, float]

    @property
    def acceptance_rate(self) -> float:
        return self.tally.acceptance.draft_acceptance_rate


@dataclass(frozen=True, slots=True)
class Advice:
    """`best` by number of sequences; `recommended` is the first number's. Sentences for people."""

    worth_it: bool
    recommended: Choice
    best: dict[int, Choice]
    sentence: str
    hints: tuple[str, ...]


def choices(
    replayed: Sequence[Replayed], cost: StepCost, sequences: Sequence[int], draft_wait_ms: float
) -> list[Choice]:
    """Every method at every K with its expected speed-ups."""
    return [
        Choice(one, tally, {n: speedup(tally, cost, n, draft_wait_ms) for n in sequences})
        for one in replayed
        for tally in one.tallies
    ]


def best_choice(among: Sequence[Choice], sequences: int) -> Choice:
    """The fastest for so many sequences; of equals the one with the smaller K."""
    return max(among, key=lambda choice: (round(choice.speedups[sequences], 4), -choice.tally.k))


def advise(among: Sequence[Choice], cost: StepCost, sequences: Sequence[int]) -> Advice:
    """The advice for the first of `sequences`, with what changes for the others."""
    best = {n: best_choice(among, n) for n in sequences}
    first = sequences[0]
    recommended = best[first]
    worth_it = recommended.speedups[first] >= WORTH
    if worth_it:
        sentence = _turn_on(recommended, best, cost)
    else:
        sentence = _leave_off(among, recommended, first)
    return Advice(
        worth_it=worth_it,
        recommended=recommended,
        best=best,
        sentence=sentence,
        hints=tuple(_hints(recommended, best, first, worth_it)),
    )


def _turn_on(recommended: Choice, best: dict[int, Choice], cost: StepCost) -> str:
    gains = ", ".join(
        f"{recommended.speedups[n]:.2f} times plain decoding's speed with {_sequences(n)}"
        for n in best
    )
    assumed = " (at an assumed cost of verifying)" if cost.assumed else ""
    return (
        f"worth turning on: {recommended.replayed.name} with num_speculative_tokens "
        f"{recommended.tally.k} gives {recommended.tally.tokens_per_round:.2f} tokens a step, "
        f"expected {gains}{assumed}."
    )


def _leave_off(among: Sequence[Choice], recommended: Choice, sequences: int) -> str:
    richest = max(among, key=lambda choice: choice.tally.tokens_per_round)
    tokens = richest.tally.tokens_per_round
    name = richest.replayed.name
    if not any(choice.tally.rounds for choice in among):
        return (
            "nothing can be said: no output holds a token behind its first, which comes from "
            "prefill; give longer outputs."
        )
    if not richest.tally.acceptance.num_draft_tokens:
        return f"not worth turning on: no method found a draft; try {_DRAFT_MODEL}."
    if tokens < _LITTLE:
        return (
            f"not worth turning on: {name} gives {tokens:.1f}: the text repeats little; try "
            f"{_DRAFT_MODEL}."
        )
    return (
        f"not worth turning on: {name} gives {tokens:.1f} tokens a step, but verifying costs what "
        f"it saves ({recommended.speedups[sequences]:.2f} times plain decoding's speed at best "
        f"with {_sequences(sequences)}); try fewer requests at once or {_DRAFT_MODEL}."
    )


def _hints(recommended: Choice, best: dict[int, Choice], first: int, worth_it: bool) -> list[str]:
    hints = []
    rate = recommended.acceptance_rate
    if recommended.tally.acceptance.num_draft_tokens and rate < _HALF:
        hints.append(
            f"Less than half of {recommended.replayed.name}'s drafts are accepted ({rate:.0%}): "
            "change the method, not K."
        )
    for n, choice in best.items():
        if n == first or not worth_it:
            continue
        if choice.speedups[n] < WORTH:
            hints.append(
                f"With {_sequences(n)} nothing is gained: at best {choice.speedups[n]:.2f} times "
                "plain decoding's speed. Leave the verifier adaptive: it turns drafts off there."
            )
        elif choice is not recommended and choice.speedups[n] > recommended.speedups[n] * 1.01:
            hints.append(
                f"With {_sequences(n)} the best is {choice.replayed.name} with "
                f"num_speculative_tokens {choice.tally.k}: {choice.speedups[n]:.2f} times."
            )
        elif recommended.speedups[n] < _SLOWER:
            hints.append(f"With {_sequences(n)} this K is slower than plain decoding.")
    return hints


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"
