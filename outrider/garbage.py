"""How a server's process collects cycles once it is loaded. Knows the interpreter only.

What a step makes is freed by its reference counts; the collector looks at it all the same, each
time 700 objects more are alive: at 128 sequences in two steps of three, 0.2 ms each time, and a
full collection of a process with torch took 80 ms in the middle of a stream.
"""

from __future__ import annotations

import atexit
import gc

# Objects alive more than at the last collection, of the youngest generation; and how many
# collections of a generation make one of the next.
_YOUNG, _PER_OLDER = 20_000, 20


def settle() -> None:
    """Take what is loaded out of the collector's sight, and let it look seldom.

    For processes that are Outrider's own: both are the interpreter's, not a caller's.
    """
    gc.collect()
    gc.freeze()
    # At its end the interpreter frees only what the collector sees; libraries complain of the rest.
    atexit.register(gc.unfreeze)
    gc.set_threshold(_YOUNG, _PER_OLDER, _PER_OLDER)
