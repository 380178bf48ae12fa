"""How a CUDA device captures what was launched once and is replayed.

Knows streams and graphs; does not know what is captured.
"""

from __future__ import annotations

import torch

from verifier_service.engines.graphs import Capture, Replay


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share one pool of memory."""
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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            function()
        replay: Replay = graph.replay
        # The first replay takes longer, and what cannot be replayed should fail at the start.
        replay()
        return replay

    return capture
