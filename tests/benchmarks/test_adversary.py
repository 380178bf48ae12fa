from __future__ import annotations

from benchmarks.adversary import Adversary


def drafts(seed: int = 0) -> list[tuple[int, ...]]:
    adversary = Adversary(vocab_size=1000, eos_token_ids=[2], seed=seed)
    adversary.open(1, [500, 501, 502], 3, "")
    found = []
    for _ in range(50):
        draft = adversary.propose(1, 8)
        found.append(draft.ids)
        adversary.extend(1, draft.ids[:1])
    adversary.close(1, True)
    return found


def test_it_always_drafts_as_many_as_it_may_inside_the_vocabulary() -> None:
    for ids in drafts():
        assert len(ids) == 8
        assert all(0 <= token < 1000 for token in ids)


def test_it_is_a_function_of_its_seed_and_the_text() -> None:
    assert drafts() == drafts()
    assert drafts(seed=1) != drafts()


def test_it_drafts_end_of_sequence_known_and_unknown_ids() -> None:
    tokens = [token for ids in drafts() for token in ids]
    assert 2 in tokens
    assert tokens.count(500) + tokens.count(501) + tokens.count(502) > 20
    assert len(set(tokens)) > 50
