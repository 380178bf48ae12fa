"""What a draft model is run with, beside its speculative config."""

from __future__ import annotations

import pytest

from outrider.draft_models import Placement, deadline_ms, draft_model_settings
from outrider.errors import InputError
from outrider.speculative_options import parse_speculative_config

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def draft(**keys: object) -> dict[str, object]:
    return {"method": "draft_model", "model": "org/x", "num_speculative_tokens": 3, **keys}


def test_settings_are_the_config_and_where_it_runs() -> None:
    (config,) = parse_speculative_config(draft(quantization="int8", revision="v1"))
    settings = draft_model_settings(config, Placement("cuda:1", "float32", 1 << 20))
    assert settings is not None
    assert (settings.model, settings.revision, settings.quantization) == ("org/x", "v1", "int8")
    assert (settings.device, settings.dtype) == ("cuda:1", "float32")
    assert settings.kv_cache_memory_bytes == 1 << 20
    (ngram,) = parse_speculative_config(NGRAM)
    assert draft_model_settings(ngram) is None


def test_a_draft_model_is_waited_for_longer() -> None:
    configs = parse_speculative_config([NGRAM, draft()])
    assert deadline_ms(configs) == 1000
    assert deadline_ms(configs[:1]) == deadline_ms(()) == 10


@pytest.mark.parametrize(
    ("options", "words"), [(("tpu",), "--device: 'tpu'"), (("cpu", "int8"), "--dtype: 'int8'")]
)
def test_a_wrong_placement_names_the_option(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=f"^{words} is not one of auto, "):
        Placement(*options)
