"""A captured prefill's layout in which rounds beside the prompts have an attention of their own.

Knows layouts; does not know kernels. A kernel for prompts reads keys once for every query head and
looks for each sequence's queries in as many places as the longest prompt has; one for few queries
reads them once. Which sequences are rounds is found on the device, from the step's own bounds: a
capture serves any number of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from verifier_service.engines.attention import StepLayout


def rounds_apart(layout: StepLayout, most: int) -> StepLayout:
    """The same step, whose first sequences of at most `most` queries are in `rounds`.

    In either of the two all other sequences have no queries. The layout has a table and no parts.
    """
    bounds = layout.cu_query
    assert bounds is not None
    lengths = bounds.diff()
    leading = (lengths > most).cumsum(0) == 0
    # Where the queries of the first prompt begin.
    end = (lengths * leading).sum().to(bounds.dtype)
    rounds = replace(layout, cu_query=torch.minimum(bounds, end), max_query=most)
    return replace(layout, cu_query=torch.maximum(bounds, end), rounds=rounds)
