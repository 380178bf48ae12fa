"""Tensors on their way to a device."""

from __future__ import annotations

import torch

from verifier_service.transfers import to_device


def test_a_processor_reads_the_tensor_itself() -> None:
    tensor = torch.arange(3)
    assert to_device(tensor, "cpu") is tensor
    assert to_device(tensor, torch.device("cpu")) is tensor


def test_another_device_gets_a_copy() -> None:
    assert to_device(torch.arange(3), "meta").is_meta
