"""The engine in a process of its own, so that its host work shares no interpreter with the edge.

`process` starts and ends the child, `child` is what runs there, `host` serves its core, and
`remote_core` is that core as the edge sees it. `wire` and `outbox` carry what the two say.
"""
