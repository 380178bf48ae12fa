"""What users of `vllm bench` type, made into what the bench commands take.

Knows vLLM's option names, those that mean nothing here among them; does not know what an option
does. `--goodput ttft:200 tpot:50` gives one option several values, as there, and a name may be
written with underscores. A name of vLLM's that is not ours is an error that says what to do
instead, not silence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import typer
from typer.core import TyperCommand

from outrider.errors import InputError

# Options that take all words up to the next option.
_LISTS: Final = ("--goodput", "--metadata", "--header")
_NOISE: Final = (
    "prompts are texts of a data set, not random tokens: nothing can be guessed of noise; choose "
    "one with --dataset-name"
)
_NO_TOKENIZER: Final = "there is no tokenizer here: the server counts tokens; leave it out"
_ONE_FILE: Final = "name a set of --dataset-name and its file with --dataset-path"
_SWEEP: Final = (
    "a sweep takes lists here: --max-concurrency 1,8 or --request-rate 1,2, and "
    "--num-speculative-tokens 2,4"
)
_LORA: Final = "give the adapter's served name as --model"
NOT_HERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("--tokenizer", "--tokenizer-mode", "--skip-tokenizer-init", "--trust-remote-code"),
        _NO_TOKENIZER,
    ),
    **dict.fromkeys(("--lora-modules", "--lora-assignment", "--lora-path"), _LORA),
    **dict.fromkeys(
        ("--hf-name", "--hf-split", "--hf-subset", "--speed-bench-category", "--bfcl-categories"),
        _ONE_FILE,
    ),
    **dict.fromkeys(("--speed-bench-dataset-subset", "--speed-bench-output-len"), _ONE_FILE),
    **dict.fromkeys(("--serve-params", "--bench-params", "--bench-cmd", "--link-vars"), _SWEEP),
    **dict.fromkeys(("--workload-var", "--workload-iters"), _SWEEP),
    "--after-bench-cmd": "arms take turns at one server: no command runs between them",
    "--resume": "a sweep is not continued; its partial.json keeps what was measured",
    "--show-stdout": "a server's output is shown where it does not start",
    "--profile": "profile the server with its own tools; outrider traces shows where rounds go",
    "--plot-timeline": "--save-detailed keeps every request's times; --html has plots",
    "--timeline-itl-thresholds": "--save-detailed keeps every request's times",
    "--plot-dataset-stats": "--save-detailed keeps every request's lengths",
    "--self-timed": "arrivals are --request-rate's, the same for every arm",
    "--probe-request-rate": "the baseline in the same run is the probe",
    "--request-id-prefix": "the server names requests; --header adds what it should log",
    "--chat-template-kwargs": "send it as --extra-body '{\"chat_template_kwargs\": {...}}'",
    "--skip-chat-template": "--backend openai sends prompts without a template",
    "--use-beam-search": "beam search asks one token at a time: speculation brings it nothing",
    "--no-stream": "answers are streamed, else no time of a token is known",
    "--n": "one answer a prompt is timed; --extra-body '{\"n\": N}' asks for more",
    "--disable-detokenize": "the server is measured as its clients meet it, text included",
    "--async-engine": "the server is asynchronous",
    "--prequeue-requests": "all prompts are sent at once",
    "--dataset": "it is called --dataset-path",
    "--endpoint-type": "it is called --backend",
    "--enable-multimodal-chat": "prompts are texts",
    "--prefix-len": _NOISE,
}
_NOT_HERE_FAMILIES: Final[Mapping[str, str]] = {
    "--random-": _NOISE,
    "--sonnet-": _NOISE,
    "--prefix-repetition-": _NOISE,
    "--timed-trace-": "arrivals are --request-rate's, the same for every arm",
    "--asr-": "prompts are texts",
    "--blazedit-": _ONE_FILE,
}
# The address of a server that is started is the command's own choice.
_CHOSEN: Final = ("--host", "--port")
_OTHER_SWEEPS: Final = ("serve", "serve_workload", "startup", "plot", "plot_pareto")


class VllmCommand(TyperCommand):
    """A command that reads words as `vllm bench` would.

    Raises InputError for a name of vLLM's that is not ours.
    """

    # The context's class is typer's own affair.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        known = {name for param in self.params for name in param.opts}
        words = [_dashed(word, known) for word in args[:end]]
        own, others = self.parted(words, known)
        for word in own:
            _check(word.partition("=")[0], known)
        behind = [*others, *args[end + 1 :]]
        return super().parse_args(
            ctx, [*_one_value_each(own), *(["--"] if behind else []), *behind]
        )

    def parted(self, words: list[str], known: Collection[str]) -> tuple[list[str], list[str]]:
        """This command's own words, and those for the server that it starts."""
        return words, []


class SweepCommand(VllmCommand):
    """`vllm bench sweep` has commands of its own; here there is one sweep."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in _OTHER_SWEEPS:
            raise InputError(f"sweep {args[0]}: there is one sweep, without {args[0]!r}; {_SWEEP}")
        return super().parse_args(ctx, args)


class EngineCommand(VllmCommand):
    """A command that starts a server: options that only `outrider serve` has are that server's.

    They need no `--` before them, as `vllm bench latency` needs none.
    """

    def parted(self, words: list[str], known: Collection[str]) -> tuple[list[str], list[str]]:
        takes_value = serve_options()
        own: list[str] = []
        served: list[str] = []
        left = iter(words)
        for word in left:
            name, equals, _ = word.partition("=")
            if name in known or name not in takes_value:
                own.append(word)
                continue
            if name in _CHOSEN:
                raise InputError(
                    f"{name}: the address of the server that is started is this command's choice; "
                    "--base-url names a running one"
                )
            served.append(word)
            if takes_value[name] and not equals:
                served += [value for value in [next(left, None)] if value is not None]
        return own, served


@cache
def serve_options() -> Mapping[str, bool]:
    """The options of `outrider serve`, and whether each takes a value."""
    from outrider.commands.serve import serve

    app = typer.Typer()
    app.command()(serve)
    return {
        name: not getattr(param, "is_flag", False)
        for param in typer.main.get_command(app).params
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("-") and name != "--help"
    }


def _dashed(word: str, known: Collection[str]) -> str:
    name, equals, value = word.partition("=")
    if not name.startswith("--") or name in known:
        return word
    return name.replace("_", "-") + equals + value


def _check(name: str, known: Collection[str]) -> None:
    if name in known:
        return
    reason = NOT_HERE.get(name)
    for beginning, why in _NOT_HERE_FAMILIES.items():
        if name.startswith(beginning):
            reason = why
    if reason is not None:
        raise InputError(f"{name}: {reason}")


def _one_value_each(words: Sequence[str]) -> Iterator[str]:
    """`--goodput a b` as `--goodput a --goodput b`."""
    option, values = "", 0
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            option, values = (name if name in _LISTS else ""), int(bool(equals))
        elif option:
            if values:
                yield option
            values += 1
        yield word
