"""When a step is plain only to measure what a plain step costs: all gains are told from that.

Knows an admission and the cost table; decides nothing else. What drafts gain is measured by
plain_periods.py.
"""

from __future__ import annotations

from verifier_service.admission import Admission
from verifier_service.costs import CostTable

# A plain step is taken when what it forgoes, spread over the steps since the last one, is less
# than this share of them; not before so many, and whatever it forgoes after so many. While it was
# measured once only, the share is so many times as large: one look is mostly noise.
_SHARE, _MIN_AGE, _MAX_AGE = 0.001, 4, 160
_FEW = 5.0
# It is also taken when the curve has moved by this share since, on other counts' evidence.
_DRIFT = 0.1


def plain_due(best: Admission, costs: CostTable, sequences: int) -> bool:
    """Whether to measure a plain step of so many sequences again.

    Else a plain step that seems slower than it is would make drafts look worth their price,
    and so never be measured.
    """
    if not any(best.counts):
        return False
    if costs.drift(sequences) > _DRIFT:
        return True
    age = costs.age(sequences)
    if age > _MAX_AGE:
        return True
    share = _SHARE * (1.0 + _FEW / max(costs.known(sequences), 1.0))
    return age >= _MIN_AGE and best.gain < age * share
