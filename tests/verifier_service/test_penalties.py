from __future__ import annotations

import numpy as np
import pytest

from verifier_service.messages import Sampling
from verifier_service.penalties import TokenCounts


@pytest.mark.parametrize("distinct", [63, 64, 65, 200])
def test_a_sequence_may_say_any_number_of_distinct_tokens(distinct: int) -> None:
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=1.0)
    counts = TokenCounts(sampling)
    prompt = list(range(distinct))
    output = [token + distinct for token in prompt] * 2
    counts.extend([*prompt, *output], len(prompt))
    rows = counts.rows([])
    assert sorted(rows.token_ids.tolist()) == list(range(2 * distinct))
    assert (rows.factors == 2.0).all()
    said = np.isin(rows.token_ids, output)
    assert (rows.frequencies[0] == np.where(said, 2.0, 0.0)).all()
