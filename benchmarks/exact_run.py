"""Runs the matrix of exactness cases against plain decoding, and can go on where it stopped.

Knows how to compare and what counts as a failure; generators and the judge are handed in.

Plain outputs are made once for each temperature, by the same generator without proposers, one
client at a time, and are themselves held against the judge's own forward of the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.divergence import Divergence, Target, check_plain, compare
from benchmarks.exact_cases import Case, Generated, Job

# A generation at one of eight clients costs about this much of one at a single client.
_BATCHED_COST = 0.4


class Generator(Protocol):
    """Something that decodes; outputs come in the order of the jobs."""

    def generate(self, jobs: Sequence[Job], case: Case, max_tokens: int) -> list[Generated]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """A divergence and the prompt that it was found at."""

    job: str
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Sums over the prompts of one case; `tokens` are those up to the first difference."""

    case: Case
    outputs: int
    equal: int
    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float
    found: tuple[Found, ...] = ()

    @property
    def vacuous(self) -> bool:
        """Nothing was drafted although the case is about drafts: it proves nothing."""
        return self.case.k > 0 and self.drafted == 0

    @property
    def failures(self) -> list[Found]:
        return [one for one in self.found if not one.divergence.numerical]

    @property
    def passed(self) -> bool:
        return not self.failures and not self.vacuous

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CaseResult:
        found = (Found(one["job"], Divergence(**one["divergence"])) for one in values["found"])
        return cls(**{**values, "case": Case(**values["case"]), "found": tuple(found)})


@dataclass(slots=True)
class Store:
    """Results by key in a JSON-lines file, so that a stopped run can go on; or only in memory.

    The first line holds what the results depend on. Raises ValueError where an existing file
    belongs to other settings.
    """

    path: Path | None
    signature: Mapping[str, Any]
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if not lines:
            self.path.write_text(json.dumps(self.signature) + "\n")
            return
        if json.loads(lines[0]) != json.loads(json.dumps(self.signature)):
            raise ValueError(f"{self.path} belongs to other settings; remove it or name another")
        whole = lines[:1]
        for line in lines[1:]:
            try:
                self.values.update(json.loads(line))
            except json.JSONDecodeError:
                # Torn: the run was killed while it wrote this line.
                break
            whole.append(line)
        self.path.write_text("".join(line + "\n" for line in whole))

    def get_or_make(self, key: str, make: Callable[[], Any]) -> Any:
        """The JSON value of `key`, made and kept if it is not there."""
        if key not in self.values:
            self.values[key] = make()
            if self.path is not None:
                with self.path.open("a") as handle:
                    handle.write(json.dumps({key: self.values[key]}) + "\n")
        return self.values[key]


@dataclass(frozen=True, slots=True)
class Check:
    """One run of the matrix. `say` gets lines of progress."""

    generator: Generator
    target: Target
    jobs: Sequence[Job]
    max_tokens: int
    store: Store
    say: Callable[[str], None]

    def run(self, cases: Sequence[Case]) -> list[CaseResult]:
        """The plain decoding of each temperature, then the cases; one result each."""
        results: list[CaseResult] = []
        temperatures = dict.fromkeys(case.temperature for case in cases)
        for temperature in temperatures:
            results.append(self._plain(temperature)[1])
            self.say(describe(results[-1]))
        self._announce(results, cases)
        for number, case in enumerate(cases, start=1):
            value = self.store.get_or_make(f"case {case}", partial(self._case, case))
            results.append(CaseResult.from_json(value))
            self.say(f"{number}/{len(cases)} {describe(results[-1])}")
        return results

    def _plain(self, temperature: float) -> tuple[list[tuple[int, ...]], CaseResult]:
        value = self.store.get_or_make(
            f"plain {temperature:g}", partial(self._make_plain, temperature)
        )
        outputs = [tuple(output) for output in value["outputs"]]
        return outputs, CaseResult.from_json(value["result"])

    def _make_plain(self, temperature: float) -> dict[str, Any]:
        case = Case("none", 0, temperature, 1)
        started = time.perf_counter()
        made = self.generator.generate(self.jobs, case, self.max_tokens)
        seconds = time.perf_counter() - started
        found: list[Found] = []
        for job, one in zip(self.jobs, made, strict=True):
            wrong = check_plain(
                self.target, job.prompt, one.ids, temperature=temperature, seed=job.seed
            )
            found += [Found(job.name, divergence) for divergence in wrong]
        result = CaseResult(
            case=case,
            outputs=len(made),
            equal=len(made) - len({one.job for one in found}),
            tokens=sum(len(one.ids) for one in made),
            steps=0,
            drafted=0,
            accepted=0,
            seconds=seconds,
            found=tuple(found),
        )
        return {"outputs": [list(one.ids) for one in made], "result": result.to_json()}

    def _case(self, case: Case) -> dict[str, Any]:
        expected, _ = self._plain(case.temperature)
        started = time.perf_counter()
        made = self.generator.generate(self.jobs, case, self.max_tokens)
        seconds = time.perf_counter() - started
        found: list[Found] = []
        tokens = 0
        for job, right, one in zip(self.jobs, expected, made, strict=True):
            divergence = compare(
                self.target,
                job.prompt,
                right,
                one.ids,
                temperature=case.temperature,
                seed=job.seed,
            )
            tokens += len(right) if divergence is None else divergence.position
            if divergence is not None:
                found.append(Found(job.name, divergence))
        result = CaseResult(
            case=case,
            outputs=len(made),
            equal=len(made) - len(found),
            tokens=tokens,
            steps=sum(one.steps for one in made),
            drafted=sum(one.drafted for one in made),
            accepted=sum(one.accepted for one in made),
            seconds=seconds,
            found=tuple(found),
        )
        return result.to_json()

    def _announce(self, plain: Sequence[CaseResult], cases: Sequence[Case]) -> None:
        one = sum(result.seconds for result in plain) / max(1, len(plain))
        missing = [case for case in cases if f"case {case}" not in self.store.values]
        seconds = sum(one * (1 if case.clients == 1 else _BATCHED_COST) for case in missing)
        self.say(
            f"{len(missing)} of {len(cases)} cases to run, {len(missing) * len(self.jobs)} "
            f"generations; estimated from plain decoding: {seconds / 60:.1f} minutes at most"
        )


def describe(result: CaseResult) -> str:
    """One line of progress."""
    numerical = len(result.found) - len(result.failures)
    parts = [f"{result.case}: {result.equal}/{result.outputs} equal"]
    if result.drafted:
        parts.append(f"{result.accepted}/{result.drafted} drafts accepted")
    if numerical:
        parts.append(f"{numerical} numerical")
    if result.failures:
        parts.append(f"{len(result.failures)} FAILED")
    if result.vacuous:
        parts.append("FAILED: nothing was drafted")
    return ", ".join([*parts, f"{result.seconds:.1f} s"])
