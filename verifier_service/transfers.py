"""Small tensors on their way to a device, without the host waiting for what the device still does.

Knows tensors and devices only.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A host's tensor on the device.

    From memory that is not pinned a copy may wait for all that was launched before it.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
