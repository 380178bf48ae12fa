"""Which proposer's block is taken."""

from verifier_service.choice import best_block
from verifier_service.messages import DraftBlock


def block(proposer: str, match_length: int = 0) -> DraftBlock:
    return DraftBlock(proposer, 5, (1, 2, 3), match_length=match_length)


def test_takes_the_block_with_most_expected_accepted_drafts() -> None:
    blocks = [block("a"), block("b")]
    assert best_block(blocks, [[0.9, 0.1, 0.0], [0.6, 0.5, 0.4]]) == 1
    assert best_block(blocks, [[0.9, 0.7, 0.0], [0.6, 0.5, 0.4]]) == 0


def test_equal_chances_go_to_the_longer_match_then_to_the_first() -> None:
    chances = [[0.5, 0.25], [0.5, 0.25]]
    assert best_block([block("a", 2), block("b", 7)], chances) == 1
    assert best_block([block("a", 3), block("b", 3)], chances) == 0
