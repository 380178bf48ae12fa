"""What must hold of the running containers, step by step; `make compose-test` brings them up.

    python -m tests.compose.check URL

Containers are killed, crashed, scaled and stopped while clients stream. Every step ends with the
same answers, token by token: the verifiers run in float32, so that they depend on nothing else.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.compose import cluster
from tests.compose.clients import (
    MAX_TOKENS,
    Answer,
    client,
    eventually,
    evidence,
    request_body,
    serving,
    stream,
    streams,
    sums,
    totals,
)

RESTART_S = 300.0
SERVICES = ("gateway", "verifier", "proposer-ngram", "proposer-suffix")

# Of the process that an exec starts, which has what the container's own has; and who is first.
_RIGHTS = """
import pathlib
lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
first = pathlib.Path("/proc/1/comm").read_text().strip()
print(int(lines["CapEff"], 16), lines["NoNewPrivs"].strip(), first)
"""


class Check:
    """The steps in their order; `reference` is what every later answer must be."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._begun = time.monotonic()
        self._reference: list[list[int]] = []

    async def run(self) -> None:
        await self._images()
        await self._answers_alone()
        await self._scale_up()
        await self._totals()
        await self._proposer_killed()
        await self._verifier_crashed()
        await self._verifier_drained()
        await self._gpu_profile()
        await self._gateway_drained()

    async def _images(self) -> None:
        cluster.compose("--profile", "gpu", "--profile", "observability", "config", "--quiet")
        for service in ("gateway", "proposer-ngram", "proposer-suffix"):
            (container,) = cluster.containers(service)
            found = cluster.python_in(
                container, "import importlib.util as u; print(u.find_spec('torch'))"
            )
            _require(found == "None", f"{service} has torch: {found}")
        for service in ("gateway", "proposer-ngram", "verifier"):
            (container,) = cluster.containers(service)
            user = cluster.python_in(container, "import os; print(os.getuid(), os.getgid())")
            _require(user == "10001 10001", f"{service} runs as {user}")
            written = cluster.python_in(
                container,
                "import errno\n"
                "try: open('/usr/written', 'w')\n"
                "except OSError as error: print(errno.errorcode[error.errno])",
            )
            _require(written in ("EROFS", "EACCES"), f"{service} can write its root: {written}")
        # Kernels differ in what they can limit; the engine drops the rest with a warning.
        told = cluster.engine()
        limits = {"Memory": told["MemoryLimit"], "PidsLimit": told["PidsLimit"]}
        self._say(f"this engine can limit: {limits}")
        for service in SERVICES:
            (container,) = cluster.containers(service)
            _require_confined(container, [name for name, can in limits.items() if can])
        self._say("profiles are valid; no torch where none belongs; no root user, no writable root")

    async def _answers_alone(self) -> None:
        answers = await streams(self._url)
        _require_whole(answers)
        self._reference = [answer.token_ids for answer in answers]
        _require(
            all(len(ids) == MAX_TOKENS for ids in self._reference), "an answer is not complete"
        )
        self._say(f"{len(answers)} streamed chats through the published port")

    async def _scale_up(self) -> None:
        began = {name: _began(name) for service in SERVICES for name in cluster.containers(service)}
        await asyncio.to_thread(lambda: cluster.scale(verifier=2, proposer_ngram=2))
        await eventually("two verifiers serve", self._verifiers_are(2), 30)
        _require(
            began == {name: _began(name) for name in began}, "a container that ran was restarted"
        )
        proposers = cluster.containers("proposer-ngram")
        attached = [cluster.open_streams(name) for name in proposers]
        _require(attached == [1, 1], f"verifiers attached to {proposers}: {attached}")
        self._say("two verifiers, two n-gram proposers, one for each; nothing was restarted")

    async def _totals(self) -> None:
        before = await totals(self._url)
        answers = await streams(self._url)
        self._require_same(answers)
        after = await totals(self._url)
        grown = {engine: after[engine] - before.get(engine, Counter()) for engine in after}
        _require(
            len(grown) == 2 and all(g["vllm:generation_tokens_total"] for g in grown.values()),
            f"requests were not spread over both verifiers: {grown}",
        )
        told = sum(grown.values(), Counter())
        _require(told == +sums(answers), f"metrics say {told}, the answers {sums(answers)}")
        everything = sum(after.values(), Counter())
        del everything["vllm:prompt_tokens_total"]
        await eventually(
            "the gateway's evidence has the same totals",
            lambda: asyncio.run(evidence(self._url)) == everything,
            30,
        )
        self._say("requests spread; metrics of both verifiers and evidence are the sum")

    async def _proposer_killed(self) -> None:
        killed, other = cluster.containers("proposer-ngram")
        answers = await streams(self._url, lambda: cluster.kill(killed))
        self._require_same(answers)
        await eventually(
            "the verifier whose proposer was killed moved to the other one",
            lambda: cluster.open_streams(other) == 2,
            30,
        )
        self._say("a proposer killed under 8 streams: the same tokens, its verifier moved")

    async def _verifier_crashed(self) -> None:
        verifiers = cluster.containers("verifier")
        # Long enough for streams to be left, also where one verifier is faster than the other.
        answers = await streams(
            self._url,
            lambda: cluster.crash(max(verifiers, key=cluster.running_requests)),
            max_tokens=2 * MAX_TOKENS,
        )
        whole = [answer for answer in answers if answer.whole]
        cut = [answer for answer in answers if not answer.whole]
        _require(bool(whole) and bool(cut), f"{len(whole)} of 8 streams ended well")
        for answer in cut:
            _require(answer.error.startswith("503: "), f"a cut stream ends with {answer.error!r}")
        for number, answer in enumerate(answers):
            expected = self._reference[number][: len(answer.token_ids)]
            _require(
                answer.token_ids[: len(expected)] == expected,
                f"client {number}'s tokens are not what they were",
            )
        self._require_same(await streams(self._url))
        await eventually("the crashed verifier serves again", self._verifiers_are(2), RESTART_S)
        await asyncio.to_thread(lambda: cluster.scale(verifier=2, proposer_ngram=2))
        self._require_same(await streams(self._url))
        self._say(f"a verifier crashed under 8 streams: {len(cut)} got a 503, {len(whole)} ended")

    async def _verifier_drained(self) -> None:
        stopped = cluster.containers("verifier")[1]
        process: list[subprocess.Popen[bytes]] = []
        answers = await streams(self._url, lambda: process.append(cluster.stopping(stopped)))
        self._require_same(answers)
        await eventually("the stopped verifier ended", lambda: process[0].poll() == 0, 60)
        await eventually("one verifier is left", self._verifiers_are(1), 30)
        self._require_same(await streams(self._url))
        self._say("a verifier stopped under 8 streams: all ended, then the other one took all")

    async def _gpu_profile(self) -> None:
        """Without a card: that the services find each other, and that the model's drafts count."""
        before = set(await serving(self._url))
        await asyncio.to_thread(cluster.gpu_profile_up)
        (proposer,) = cluster.containers("proposer-draft-model")
        await eventually(
            "the verifier of profile gpu is attached to the draft model",
            lambda: cluster.open_streams(proposer) == 1,
            30,
        )

        def it_serves_alone() -> bool:
            now = asyncio.run(serving(self._url))
            return len(now) == 1 and before.isdisjoint(now)

        await eventually("it serves alone", it_serves_alone, 90)
        for number in (0, 1):
            async with client(self._url) as http:
                answer = await stream(http, number, speculation={"proposer": "draft_model"})
            _require_whole([answer])
            _require(answer.token_ids == self._reference[number], "a draft model changed tokens")
            accepted = answer.figure("num_accepted_draft_tokens")
            # The target drafts for itself: what is not accepted came too late.
            _require(2 * accepted > MAX_TOKENS, f"{accepted} of {MAX_TOKENS} tokens were drafted")
        await asyncio.to_thread(cluster.gpu_profile_down)
        await asyncio.to_thread(lambda: cluster.scale(verifier=1, proposer_ngram=2))
        await eventually("a verifier on the CPU serves again", self._verifiers_are(1), RESTART_S)
        self._say("profile gpu, on the CPU: a draft model's tokens accepted, the answers the same")

    async def _gateway_drained(self) -> None:
        (gateway,) = cluster.containers("gateway")
        process: list[subprocess.Popen[bytes]] = []
        refused: list[int] = []

        def stop_and_ask() -> None:
            process.append(cluster.stopping(gateway))
            asyncio.run(eventually("new requests are refused", ask, 30, 0.1))

        def ask() -> bool:
            refused.append(asyncio.run(self._status_of_one()))
            return refused[-1] == 503

        answers = await streams(self._url, stop_and_ask)
        self._require_same(answers)
        await eventually("the stopped gateway ended", lambda: process[0].poll() == 0, 60)
        self._say("the gateway stopped under 8 streams: all ended, new ones got 503")

    async def _status_of_one(self) -> int:
        async with client(self._url) as http:
            body = {**request_body(0), "stream": False, "max_tokens": 1}
            return (await http.post("/v1/chat/completions", json=body)).status_code

    def _verifiers_are(self, count: int) -> Callable[[], bool]:
        return lambda: len(asyncio.run(serving(self._url))) == count

    def _require_same(self, answers: Sequence[Answer]) -> None:
        _require_whole(answers)
        for number, answer in enumerate(answers):
            _require(
                answer.token_ids == self._reference[number],
                f"client {number} got other tokens: {answer.token_ids}, not "
                f"{self._reference[number]}",
            )

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begun:6.1f}s] {text}", flush=True)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _require_confined(container: str, limits: Sequence[str]) -> None:
    """What docker-compose.yml asks for is what the engine does."""
    found = cluster.inspect(container)
    host, state = found["HostConfig"], found["State"]
    _require(state["Health"]["Status"] == "healthy", f"{container} is {state['Health']['Status']}")
    _require(host["ReadonlyRootfs"], f"{container} has a writable root")
    for limit in limits:
        _require((host[limit] or 0) > 0, f"{container}: {limit} is {host[limit]}")
    rights = cluster.python_in(container, _RIGHTS)
    _require(rights == "0 1 docker-init", f"{container} has rights or no init: {rights}")
    for bindings in found["NetworkSettings"]["Ports"].values():
        for binding in bindings or ():
            _require(binding["HostIp"] == "127.0.0.1", f"{container} is published: {binding}")


def _began(container: str) -> str:
    return str(cluster.inspect(container)["State"]["StartedAt"])


def _require_whole(answers: Sequence[Answer]) -> None:
    for number, answer in enumerate(answers):
        _require(answer.whole, f"client {number}: HTTP {answer.status}, {answer.error!r}")


def main() -> None:
    (url,) = sys.argv[1:]
    try:
        asyncio.run(Check(url).run())
    except BaseException:
        print(cluster.logs(), file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
