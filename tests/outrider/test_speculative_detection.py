"""Which method a model means: vLLM's order of names, then config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.errors import InputError
from outrider.speculative_detection import detect_method, refuse_speculators_checkpoint


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("ngram", "ngram"),
        ("[ngram]", "ngram"),
        ("package.module.Proposer", "custom_class"),
        ("a.B", "custom_class"),
        ("org/package.Proposer", "draft_model"),
        ("https://host/a.b", "draft_model"),
        ("qwen2.5", "draft_model"),
        ("org/EAGLE-LLaMA3-Instruct-8B", "eagle"),
        ("org/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3"),
        ("org/Qwen3-8B_eagle3", "eagle3"),
        # The order is vLLM's: `eagle-` is looked for first.
        ("org/eagle-3-of-eagle3", "eagle"),
        ("org/Qwen3-8B-DFlash", "dflash"),
        ("org/dspark_qwen3_8b_block7", "dspark"),
        ("org/Qwen3-0.6B", "draft_model"),
        ("suffix", "draft_model"),
    ],
)
def test_names(model: str, method: str) -> None:
    assert detect_method(model) == method


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model_type": "medusa"}, "medusa"),
        ({"model_type": "mlp_speculator"}, "mlp_speculator"),
        ({"model_type": "mimo_mtp"}, "mtp"),
        ({"model_type": "llama"}, "draft_model"),
        ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, "dspark"),
        ({"architectures": ["MuseGlimmerAssistantModel"]}, "dflash"),
        ({"architectures": "LlamaForCausalLM"}, "draft_model"),
        ([], "draft_model"),
    ],
)
def test_folders(tmp_path: Path, config: object, method: str) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert detect_method(str(folder)) == method


def test_a_folders_name_counts_before_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "eagle3_mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "medusa"}')
    assert detect_method(str(folder)) == "eagle3"


def test_a_folder_without_a_readable_config_is_a_draft_model(tmp_path: Path) -> None:
    assert detect_method(str(tmp_path)) == "draft_model"
    (tmp_path / "config.json").write_text("{")
    assert detect_method(str(tmp_path)) == "draft_model"


def test_a_speculators_checkpoint_is_no_target(tmp_path: Path) -> None:
    refuse_speculators_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    refuse_speculators_checkpoint(tmp_path)
    speculators = {"algorithm": "eagle3", "verifier": {"name_or_path": "org/target"}}
    (tmp_path / "config.json").write_text(json.dumps({"speculators_config": speculators}))
    with pytest.raises(InputError, match=r"\(eagle3\), not a target.*; serve org/target itself"):
        refuse_speculators_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"speculators_config": {}}')
    with pytest.raises(InputError, match=r"no algorithm named\), not a target.*by Outrider$"):
        refuse_speculators_checkpoint(tmp_path)
