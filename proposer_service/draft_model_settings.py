"""The draft model's options, already validated by the command line; plain values only.

Knows no model and imports no torch: whoever builds a proposer of another method needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass

DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")


@dataclass(frozen=True, slots=True)
class DraftModelSettings:
    """Which model drafts, and on what.

    `model` is a local folder, a known name (smollm2-135m) or a hub id, and `revision` one of the
    hub's. `device`, `dtype`, `quantization` and `enforce_eager` are the verifier's options of these
    names. `max_model_len` None takes the model's own limit: a longer sequence has no drafts.
    `draft_sample_method` None drafts as the verifier's rejection rule allows best: with the noise
    of the request under `coupled`, greedily under the others; `greedy` is the argmax under every
    rule, `probabilistic` insists on the noise. `kv_cache_memory_bytes` None sizes the cache of keys
    and values as the verifier sizes its own.

    Raises ValueError naming field, value and what is allowed.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    quantization: str | None = None
    revision: str | None = None
    enforce_eager: bool = False
    draft_sample_method: str | None = None
    kv_cache_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model='': must name a folder, a known model or a hub id")
        if self.draft_sample_method not in (None, *DRAFT_SAMPLE_METHODS):
            raise ValueError(
                f"draft_sample_method={self.draft_sample_method!r}: must be one of "
                f"{', '.join(DRAFT_SAMPLE_METHODS)}, or not given"
            )
        for field, least in (("max_model_len", 2), ("kv_cache_memory_bytes", 1)):
            value = getattr(self, field)
            if value is not None and value < least:
                raise ValueError(f"{field}={value}: must be at least {least}")

    def told(self) -> dict[str, object]:
        """What a verifier may compare, by its names in a speculative config.

        Not the model: one model has other names on other machines, and its vocabulary is compared.
        """
        return {
            "max_model_len": self.max_model_len,
            "quantization": self.quantization or "none",
            "enforce_eager": self.enforce_eager,
            "draft_sample_method": self.draft_sample_method,
        }
