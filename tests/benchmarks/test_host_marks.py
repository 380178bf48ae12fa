from __future__ import annotations

import gc
import threading
from types import ModuleType

from benchmarks.host_marks import GARBAGE, Watched, marking


class Base:
    def plan(self, value: int) -> int:
        return value + 1


class Scheduler(Base):
    def apply(self) -> int:
        return self.plan(1)

    def fail(self) -> None:
        raise KeyError


def on_thread(name: str, *work: object) -> None:
    def run() -> None:
        for one in work:
            assert callable(one)
            try:
                one()
            except KeyError:
                continue

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()


WATCHED = [Watched(Scheduler, {"plan": "plan", "apply": "apply", "fail": "fail", "gone": "gone"})]


def test_calls_of_the_threads_name_are_marked_nested_and_in_order() -> None:
    scheduler = Scheduler()
    with marking(WATCHED, "engine") as host:
        on_thread("engine", scheduler.apply)
        on_thread("other", scheduler.apply)
        assert scheduler.apply() == 2
    inner, outer = host.marks
    assert (inner.name, outer.name) == ("plan", "apply")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_call_that_fails_is_marked_too() -> None:
    scheduler = Scheduler()
    with marking(WATCHED, "engine") as host:
        on_thread("engine", scheduler.fail)
    assert [mark.name for mark in host.marks] == ["fail"]


def test_what_a_class_has_not_is_told() -> None:
    with marking(WATCHED, "engine") as host:
        assert host.missing == ["Scheduler.gone"]


def test_the_classes_are_as_they_were() -> None:
    before = dict(vars(Scheduler)), dict(vars(Base)), list(gc.callbacks)
    with marking(WATCHED, "engine"):
        assert dict(vars(Scheduler)) != before[0]
    assert (dict(vars(Scheduler)), dict(vars(Base)), list(gc.callbacks)) == before


def test_a_modules_functions_are_marked_as_the_module_calls_them() -> None:
    module = ModuleType("steps")
    exec("def expect(): return 1\ndef run(): return expect()", vars(module))
    expect = vars(module)["expect"]
    with marking([Watched(module, {"expect": "expect", "gone": "gone"})], "engine") as host:
        on_thread("engine", vars(module)["run"])
    assert [mark.name for mark in host.marks] == ["expect"]
    assert host.missing == ["steps.gone"]
    assert vars(module)["expect"] is expect


def test_the_collectors_pauses_are_marked() -> None:
    with marking([], "engine") as host:
        on_thread("engine", gc.collect)
        gc.collect()
    assert f"{GARBAGE}, generation 2" in {mark.name for mark in host.marks}
    assert len([mark for mark in host.marks if mark.name.endswith("2")]) == 1
