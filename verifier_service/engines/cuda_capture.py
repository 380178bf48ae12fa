"""How a CUDA device captures what was launched once and is replayed.

Knows streams and graphs; does not know what is captured.
"""

from __future__ import annotations

import torch

from verifier_service.engines.graphs import Capture, Replay
from verifier_service.engines.seams import cutting


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share one pool of memory; one is cut in parts at its seams.

    What one part leaves in the pool for the next is there at every replay, for they keep their
    order.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()

    def capture(function: Replay) -> Replay:
        # What made the inputs must be done before another stream reads them.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graphs: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=pool, capture_error_mode="thread_local")

        def cut() -> None:
            graphs[-1].capture_end()
            begin()

        with torch.cuda.stream(stream), cutting(cut):
            begin()
            try:
                function()
            finally:
                graphs[-1].capture_end()
        replays = [graph.replay for graph in graphs]

        def replay() -> None:
            for part in replays:
                part()

        # The first replay takes longer, and what cannot be replayed should fail at the start.
        replay()
        return replays[0] if len(replays) == 1 else replay

    return capture
