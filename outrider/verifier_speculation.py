"""What a verifier is to speculate with, from its options and a speculative config.

Knows how the options go together; the config's keys are speculative_entry.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.config import MAX_SPECULATIVE_TOKENS, SpeculativeConfig, nearest
from outrider.draft_schedule import DraftSchedule
from outrider.errors import InputError
from outrider.speculative_entry import normal_keys
from outrider.speculative_names import REFUSED_REJECTION_METHODS, REJECTION_SAMPLE_METHODS
from outrider.speculative_options import OPTION, combine_speculation

# Drafts in one round where there are proposers and nobody says how many.
DEFAULT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class VerifierSpeculation:
    """The ceiling K, the verifier's rules, and what is known of the proposer at each address.

    `proposers` is empty where only numbers were given: then any proposer is taken.
    """

    num_speculative_tokens: int
    rejection_sample_method: str = "coupled"
    schedule: DraftSchedule | None = None
    adaptive: bool = True
    proposers: tuple[SpeculativeConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """The verifier's options about speculation as they were given; None: not given."""

    speculative_config: object = None
    method: str | None = None
    model: str | None = None
    tokens: int | None = None
    rejection_sample_method: str | None = None
    schedule: DraftSchedule | None = None
    adaptive: bool | None = None

    def resolve(self, addresses: Sequence[str]) -> VerifierSpeculation:
        """All of them together, for proposers at `addresses`.

        Raises InputError where two contradict each other or a value is not allowed.
        """
        for index, address in enumerate(addresses):
            if address in addresses[:index]:
                raise InputError(f"--proposer: {address!r} is given twice; give each once")
        if self.speculative_config is None and self.method is None and self.model is None:
            return self._of_numbers(addresses)
        configs = combine_speculation(
            self._with_shared(), method=self.method, model=self.model, tokens=self.tokens
        )
        if not addresses:
            raise InputError(
                f"{self._flag()}: no --proposer to make drafts; give --proposer ADDRESS for each "
                "proposer, or use outrider serve, which starts them"
            )
        if len(configs) != len(addresses):
            raise InputError(
                f"{self._flag()}: it describes {len(configs)} proposers and --proposer gives "
                f"{len(addresses)}; give one for each, in the same order"
            )
        return VerifierSpeculation(
            num_speculative_tokens=max(config.num_speculative_tokens for config in configs),
            rejection_sample_method=configs[0].rejection_sample_method,
            schedule=configs[0].schedule,
            adaptive=configs[0].enable_adaptive_verification,
            proposers=configs,
        )

    def _of_numbers(self, addresses: Sequence[str]) -> VerifierSpeculation:
        rule = self.rejection_sample_method or "coupled"
        if rule in REFUSED_REJECTION_METHODS:
            raise InputError(
                f"--rejection-sample-method: {rule!r} is not supported: "
                f"{REFUSED_REJECTION_METHODS[rule]}; Outrider has "
                f"{', '.join(REJECTION_SAMPLE_METHODS)}"
            )
        if rule not in REJECTION_SAMPLE_METHODS:
            raise InputError(
                f"--rejection-sample-method: {rule!r} is not one of "
                f"{', '.join(REJECTION_SAMPLE_METHODS)}{nearest(rule, REJECTION_SAMPLE_METHODS)}"
            )
        if self.tokens is not None and not 0 <= self.tokens <= MAX_SPECULATIVE_TOKENS:
            raise InputError(
                f"--num-speculative-tokens: {self.tokens}: must be from 0 to "
                f"{MAX_SPECULATIVE_TOKENS}"
            )
        if self.tokens and not addresses:
            raise InputError(
                f"--num-speculative-tokens: {self.tokens} drafts, and no --proposer to make them; "
                "give --proposer ADDRESS or leave the option out"
            )
        tokens = self.tokens
        if tokens is None:
            tokens = DEFAULT_TOKENS if addresses else 0
        return VerifierSpeculation(
            num_speculative_tokens=tokens,
            rejection_sample_method=rule,
            schedule=self.schedule,
            adaptive=self.adaptive is not False,
        )

    def _with_shared(self) -> object:
        """The config with the options that are keys of it as well, each given once."""
        config = self.speculative_config
        given = {key: value for key, value in self._shared().items() if value is not None}
        if not given:
            return config
        entries = config if isinstance(config, list) else [{} if config is None else config]
        merged = []
        for entry in entries:
            keys = normal_keys(entry, OPTION)
            for key in given:
                if key in keys:
                    flag = f"--{key.replace('_', '-')}"
                    raise InputError(f"{flag}: {OPTION} sets {key} too; give it once")
            merged.append({**keys, **given})
        return merged if isinstance(config, list) else merged[0]

    def _shared(self) -> Mapping[str, object]:
        return {
            "rejection_sample_method": self.rejection_sample_method,
            "num_speculative_tokens_per_batch_size": (
                None if self.schedule is None else self.schedule.ranges
            ),
            "enable_adaptive_verification": self.adaptive,
        }

    def _flag(self) -> str:
        if self.speculative_config is not None:
            return OPTION
        return "--spec-model" if self.method is None else "--spec-method"


def parse_plain_share(text: str, option: str) -> float | None:
    """The share of steps that decode plainly; None for `auto`. Raises InputError."""
    if text == "auto":
        return None
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 0.5:
        raise InputError(f"{option}: {text!r} is neither auto nor a number from 0 to 0.5")
    return share
