"""What a card is called by every process that uses it; knows devices only."""

from __future__ import annotations

import torch


def device_uuid(device: torch.device) -> str:
    """A card's UUID, whatever its number here is; empty for a CPU, which has none."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)
