"""The law of outputs under penalties, biases, masks and min_p: enumerated, and drawn.

The rules see the engine's rows, teacher-forced over the drafts; the law they are compared with
comes from the definition. A parameter that some row does not see, or sees at another prefix,
shows as a distance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from outrider.sparse_q import sample_rows
from tests.exactness.enumeration import enumerate_round, quantised
from tests.exactness.histories import Setting
from tests.exactness.rounds import expected_variation
from tests.toy import Toy, total_variation
from verifier_service.engines.base import Verdict
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.layout import pack_choices
from verifier_service.messages import QForm, RejectionRule, Sampling, SparseRow

pytestmark = pytest.mark.usefixtures("one_thread")

RULES = (RejectionRule.STANDARD, RejectionRule.BLOCK)
TOY = Toy.target(vocab_size=3)
PROMPT = (1, 0)


def not_twice(output: Sequence[int]) -> int:
    """A grammar: no token follows itself, and 2 only stands at even places."""
    bits = 0b111 if len(output) % 2 == 0 else 0b011
    return bits & ~(1 << output[-1]) if output else bits


SETTINGS = {
    "presence": Setting(TOY, PROMPT, Sampling(presence_penalty=1.1)),
    "frequency": Setting(TOY, PROMPT, Sampling(frequency_penalty=0.9, temperature=0.7)),
    "repetition": Setting(TOY, PROMPT, Sampling(repetition_penalty=1.8)),
    "bias": Setting(TOY, PROMPT, Sampling(logit_bias=((0, 1.5), (2, -0.75)))),
    "bad words": Setting(TOY, PROMPT, Sampling(bad_words=((0, 1), (2, 2), (1, 2, 0)))),
    "allowed": Setting(TOY, PROMPT, Sampling(allowed_token_ids=(0, 2))),
    "min_tokens": Setting(TOY, PROMPT, Sampling(min_tokens=2, stop_token_ids=frozenset({2}))),
    "min_p": Setting(TOY, PROMPT, Sampling(min_p=0.25)),
    "mask": Setting(TOY, PROMPT, Sampling(), not_twice),
    "all": Setting(
        TOY,
        PROMPT,
        Sampling(
            temperature=1.3,
            min_p=0.1,
            presence_penalty=-0.6,
            frequency_penalty=0.8,
            repetition_penalty=1.4,
            logit_bias=((1, 0.7),),
            bad_words=((0, 1, 0),),
            min_tokens=1,
            stop_token_ids=frozenset({2}),
        ),
        not_twice,
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.value)
@pytest.mark.parametrize("deterministic", [False, True], ids=["sampled", "one-hot"])
def test_processed_targets_keep_their_law(
    rule: RejectionRule, name: str, deterministic: bool
) -> None:
    setting, k = SETTINGS[name], 2
    target = setting.by_definition(k)
    draft = setting.unprocessed(TOY.draft(), k)
    result = enumerate_round(
        rule, target, draft, k, deterministic=deterministic, rows=setting.by_engine
    )
    assert total_variation(result.law, target.law(0, k + 1)) < 1e-12


@pytest.mark.parametrize("name", SETTINGS)
def test_the_enumeration_sees_an_unprocessed_row(name: str) -> None:
    """A check of the check: draft rows left as they are, and only the bonus row processed."""
    setting, k = SETTINGS[name], 2
    target = setting.by_definition(k)
    draft = setting.unprocessed(TOY.draft(), k)

    def bonus_only(blocks: torch.Tensor) -> torch.Tensor:
        rows = setting.by_engine(blocks).view(len(blocks), k + 1, 3)
        raw = [setting.raw(setting.chunk((), block)) for block in blocks.tolist()]
        rows[:, :k] = torch.stack([torch.stack(block[:k]) for block in raw])
        return rows.view(-1, 3)

    result = enumerate_round(RejectionRule.STANDARD, target, draft, k, rows=bonus_only)
    assert total_variation(result.law, target.law(0, k + 1)) > 0.005


def drawn(
    setting: Setting, rule: RejectionRule, seeds: int, length: int
) -> Counter[tuple[int, ...]]:
    """Outputs of one sequence for each seed, by rounds of two drafts sampled from a sparse q."""
    draft = TOY.draft()
    ids, masses = quantised(draft, 3)
    chooser = Chooser(rule, 3, "cpu")
    outputs: dict[int, list[int]] = {seed: [] for seed in range(seeds)}
    while running := [seed for seed, output in outputs.items() if len(output) < length]:
        chunks, logits = [], []
        for seed in running:
            said, drafts, q = outputs[seed], list[int](), list[SparseRow]()
            for j in range(2):
                at = draft.context([*PROMPT, *said, *drafts])
                base = len(PROMPT) + len(said)
                index = int(sample_rows(masses[at : at + 1].numpy(), [seed], base, j)[0])
                drafts.append(int(ids[at, index]))
                q.append(SparseRow(tuple(ids[at].tolist()), tuple(masses[at].tolist())))
            own = replace(setting.sampling, seed=seed)
            chunk = replace(setting.chunk(said, drafts, own, tuple(q)), q_form=QForm.SPARSE)
            chunks.append(chunk)
            logits += setting.raw(chunk)
        choices = pack_choices(chunks, torch.device("cpu"))
        verdicts: list[Verdict] = chooser.verdicts(torch.stack(logits).float(), choices, chunks)
        for seed, verdict in zip(running, verdicts, strict=True):
            outputs[seed].extend(verdict.tokens)
    return Counter(tuple(output[:length]) for output in outputs.values())


@pytest.mark.parametrize("rule", RejectionRule, ids=lambda rule: rule.value)
def test_drawn_outputs_have_the_law(rule: RejectionRule) -> None:
    """A penalty, a bias, a mask and min_p, through the chooser itself, over several rounds."""
    sampling = Sampling(
        temperature=1.3,
        min_p=0.12,
        frequency_penalty=1.0,
        repetition_penalty=1.3,
        logit_bias=((1, 0.7), (0, 0.5)),
    )
    setting = Setting(TOY, PROMPT, sampling, lambda output: 0b111 if len(output) % 2 else 0b110)
    seeds = 1200
    law = setting.by_definition(2).law(0, 3)
    counts = drawn(setting, rule, seeds, 3)
    found = {output: count / seeds for output, count in counts.items()}
    distance = total_variation(found, law)
    assert distance < 1.4 * expected_variation(law, seeds)
    assert total_variation(found, setting.unprocessed(TOY, 2).law(0, 3)) > 5 * distance
