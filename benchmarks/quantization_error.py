"""How far int8 and fp8 weights move a target's distribution, as JSON.

    python -m benchmarks.quantization_error --model FOLDER > quantization_error.json

Next-token distributions of the rounded model beside the unrounded one's, in float32, over our own
set of code edits. Rows with `head` true: the language model's head is rounded too, which the engine
does not do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.machine import describe_machine, end_on_sigterm, public_command, versions
from verifier_service.engines.quantized import SCHEMES, quantize
from verifier_service.engines.quantized_linear import QuantizedLinear

EDITS = Path(__file__).parent / "data" / "code_edits.jsonl"
CPU = torch.device("cpu")


def texts(folder: Path, count: int, tokens: int) -> list[Tensor]:
    """Ids [1, at most `tokens`] of the first `count` tasks: instruction and code."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    lines = EDITS.read_text().splitlines()[:count]
    tasks = [json.loads(line) for line in lines]
    return [
        tokenizer(f"{task['instruction']}\n{task['code']}", return_tensors="pt").input_ids[
            :, :tokens
        ]
        for task in tasks
    ]


def load(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def log_probabilities(model: Any, ids: Sequence[Tensor]) -> Tensor:
    """[all tokens, V]."""
    return torch.cat([model(one).logits[0].log_softmax(dim=-1) for one in ids])


def distance(wanted: Tensor, found: Tensor) -> dict[str, float]:
    """Of next-token distributions given as log-probabilities [tokens, V].

    `tv` is the mean total variation: the share of draws that had to change.
    """
    p, q = wanted.exp(), found.exp()
    kl = (p * (wanted - found)).sum(dim=-1)
    return {
        "kl_mean": round(float(kl.mean()), 5),
        "kl_largest": round(float(kl.max()), 4),
        "tv": round(float((p - q).abs().sum(dim=-1).mean() / 2), 4),
        "same_argmax": round(float((wanted.argmax(-1) == found.argmax(-1)).float().mean()), 4),
    }


def measure(folder: Path, ids: Sequence[Tensor]) -> list[dict[str, Any]]:
    wanted = log_probabilities(load(folder), ids)
    results: list[dict[str, Any]] = []
    for name, scheme in SCHEMES.items():
        model = load(folder)
        quantized = quantize(model, scheme, CPU)
        share = round(quantized.weights / quantized.all_weights, 3)
        row = {"quantization": name, "head": False, "share_of_weights": share}
        results.append({**row, **distance(wanted, log_probabilities(model, ids))})
        model.lm_head = QuantizedLinear.of(model.lm_head, scheme, CPU)
        row = {"quantization": name, "head": True}
        results.append({**row, **distance(wanted, log_probabilities(model, ids))})
    return results


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of a text, at most")
    return parser.parse_args(arguments)


def main() -> None:
    end_on_sigterm()
    options = parse(sys.argv[1:])
    ids = texts(options.model, options.texts, options.tokens)
    report = {
        "machine": describe_machine(),
        "versions": versions(["outrider", "torch", "transformers"]),
        "command": public_command(
            "benchmarks.quantization_error", sys.argv[1:], {"--model": options.model.name}
        ),
        "tokens": sum(one.shape[1] for one in ids),
        "results": measure(options.model, ids),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
