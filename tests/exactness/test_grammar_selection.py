"""A grammar must not peek: sampled drafts that it refuses stay, and the rule refuses them.

Enumerated through the scheduler's own cut and the matcher's own masks: what is cut, and what the
law of the output becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from xgrammar import CompiledGrammar

from tests.exactness.enumeration import Cut, Enumerated, enumerate_round
from tests.exactness.histories import HistoryToy, Setting
from tests.toy import Toy, total_variation
from verifier_service.constraints import admissible
from verifier_service.grammar.compiling import compile_structure, new_compiler
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.structure import Kind, Structure
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import DraftBlock, QForm, RejectionRule, Request, Sampling
from verifier_service.sequences import Sequence as Running

pytestmark = pytest.mark.usefixtures("one_thread")

TOY = Toy.target(vocab_size=3)
PROMPT = (1, 0)
K = 2
RULES = [RejectionRule.STANDARD, RejectionRule.BLOCK]


@cache
def grammar() -> CompiledGrammar:
    """Which tokens fit depends on the first, and the end is far away."""
    vocabulary = Vocabulary((b"a", b"b", b"c"), ())
    pattern = Structure(Kind.REGEX, "(a[bc]|cb)[ab][abc]{5}")
    return compile_structure(new_compiler(vocabulary), pattern)


@dataclass(frozen=True)
class Constrained(Setting):
    """A setting whose masks are the matcher's, each row behind the drafts before it."""

    def mask(self, outputs: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
        longest = outputs[-1]
        rows = GrammarConstraint(grammar()).masks(longest)
        return rows[[len(output) for output in outputs]]


SETTING = Constrained(TOY, PROMPT, Sampling())


def target() -> HistoryToy:
    return SETTING.by_definition(K)


def cut_by(q_form: QForm, temperature: float = 1.0) -> Cut:
    """What the scheduler leaves of a block of that form."""
    request = Request("r", list(PROMPT), Sampling(temperature=temperature))
    request.constraint = GrammarConstraint(grammar())
    sequence = Running(1, request, lambda output: None, K, K, 1, ids=list(PROMPT))

    def cut(block: tuple[int, ...]) -> int:
        offered = DraftBlock("p", len(PROMPT), block, q_form=q_form)
        left = admissible(sequence, [offered])
        return len(left[0].token_ids) if left else 0

    return cut


def round_of(rule: RejectionRule, cut: Cut, *, deterministic: bool = False) -> Enumerated:
    draft = SETTING.unprocessed(TOY.draft(), K)
    return enumerate_round(
        rule, target(), draft, K, cut=cut, deterministic=deterministic, rows=SETTING.by_engine
    )


def distance(result: Enumerated) -> float:
    return total_variation(result.law, target().law(0, K + 1))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.value)
def test_the_law_of_sampled_drafts_under_a_grammar(rule: RejectionRule) -> None:
    result = round_of(rule, cut_by(QForm.SPARSE))
    assert distance(result) < 1e-12
    refused = [out for out, p in result.law.items() if p and not fits(out)]
    assert not refused and any(not fits(out) for out in target().law(0, K + 1))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.value)
def test_a_grammar_that_peeks_changes_the_law(rule: RejectionRule) -> None:
    """A check of the check: sampled drafts cut as if they were one-hot."""
    assert distance(round_of(rule, cut_by(QForm.ONE_HOT))) > 0.01


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.value)
def test_one_hot_drafts_may_be_cut(rule: RejectionRule) -> None:
    cut = cut_by(QForm.ONE_HOT)
    assert distance(round_of(rule, cut, deterministic=True)) < 1e-12


def test_what_is_cut() -> None:
    refused_second = (0, 0)
    assert not fits(refused_second)
    assert cut_by(QForm.SPARSE)(refused_second) == 2
    assert cut_by(QForm.SPARSE, temperature=0.0)(refused_second) == 1
    assert cut_by(QForm.ONE_HOT)(refused_second) == 1
    assert cut_by(QForm.COUPLED)(refused_second) == 1


def test_a_cut_block_keeps_what_belongs_to_its_drafts() -> None:
    request = Request("r", list(PROMPT), Sampling())
    request.constraint = GrammarConstraint(grammar())
    sequence = Running(1, request, lambda output: None, K, K, 1, ids=list(PROMPT))
    whole = DraftBlock("p", 2, (0, 1), confidences=(0.9, 0.8), match_length=3)
    wrong = replace(whole, token_ids=(0, 0))
    assert admissible(sequence, [whole, wrong]) == [
        whole,
        replace(wrong, token_ids=(0,), confidences=(0.9,), refused=1),
    ]


def fits(output: Sequence[int]) -> bool:
    return GrammarConstraint(grammar()).admitted(output) == len(output)
