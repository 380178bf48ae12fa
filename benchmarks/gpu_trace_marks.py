"""Which of the engine's thread's work a trace tells apart, and by what names.

Knows classes, modules and the names of their methods and functions; does not mark them. What is
named here and is gone from the code is told by the report, and its time shows under what calls it.
"""

from __future__ import annotations

from benchmarks.gpu_idle import RUN
from benchmarks.host_marks import Watched


def watched(engine: type, source: type) -> list[Watched]:
    """What the engine's thread does in a step, outermost calls first; both are classes."""
    from verifier_service.controller import Controller
    from verifier_service.loop import Core
    from verifier_service.next_step import NextStep
    from verifier_service.scheduler import Scheduler

    return [
        Watched(Core, {"_take_commands": "loop: commands", "_flush": "loop: hand out"}),
        Watched(Core, {"_snapshot": "loop: statistics", "_foreseen": "proposers: foreseen"}),
        # What the loop says to `goes_on`.
        Watched(NextStep, {"_look": "loop: look behind"}),
        Watched(engine, {"run": RUN, "copy_blocks": "engine: copy blocks"}),
        Watched(
            Scheduler,
            {
                "admit": "scheduler: admit",
                "views": "scheduler: views",
                "plan": "scheduler: plan",
                "apply": "scheduler: apply",
            },
        ),
        Watched(
            Controller,
            {
                "begin": "controller: begin",
                "plan": "controller: plan",
                "observe_step": "controller: observe",
                "observe_speed": "controller: observe",
                "observe_wait": "controller: observe",
                "observe_begun": "controller: observe",
                "observe_held": "controller: observe",
                "observe_look": "controller: observe",
                "waits_for": "controller: wait or hold",
                "holds_for": "controller: wait or hold",
                "learn": "controller: learn",
            },
        ),
        Watched(
            source,
            {
                "send": "proposers: tell",
                "collect": "proposers: wait",
                "behind": "proposers: behind",
            },
        ),
    ]


def engine_pieces() -> list[Watched]:
    """What `TorchEngine.run` is made of: from a step's verdicts to the next one's launch."""
    from verifier_service.engines import graphs, steps_ahead
    from verifier_service.engines.captured_choice import Needs
    from verifier_service.engines.device_time import DeviceTime
    from verifier_service.engines.eager_steps import EagerSteps
    from verifier_service.engines.graphs import GraphRunner, Launched
    from verifier_service.engines.prefill_graphs import PrefillGraphs
    from verifier_service.engines.step_buffers import StepBuffers
    from verifier_service.scheduler import Scheduler

    return [
        Watched(Launched, {"verdicts": "engine: verdicts read"}),
        # As the module that asks knows them.
        Watched(
            steps_ahead,
            {
                "starts_behind": "engine: expect",
                "expected_at": "engine: expect",
                "expect_blindly": "engine: expect",
            },
        ),
        Watched(Scheduler, {"join": "scheduler: join"}),
        Watched(
            GraphRunner,
            {
                "has_begun": "engine: has begun",
                "find": "engine: find",
                "launch": "engine: launch",
                "begin_next": "engine: begin next",
                "begin_blindly": "engine: begin next",
                "begin_behind": "engine: begin behind",
                "tell": "engine: tell",
            },
        ),
        Watched(StepBuffers, {"fill": "engine: fill", "holds": "engine: blocks held"}),
        Watched(Needs, {"of": "engine: needs"}),
        Watched(graphs._Copy, {"take": "engine: copy of the result"}),
        Watched(DeviceTime, {"_begin": "engine: device time", "_end": "engine: device time"}),
        Watched(PrefillGraphs, {"serve": "engine: captured prompts"}),
        Watched(EagerSteps, {"run": "engine: eager", "run_together": "engine: eager"}),
    ]
