"""Whether a verifier's engine runs in a process of its own.

Knows settings and asks the CUDA driver whether it sees a device; imports no torch, so that the
process can be started before anything that takes long.
"""

from __future__ import annotations

import ctypes
import logging

from verifier_service.settings import VerifierSettings

_log = logging.getLogger(__name__)

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")


def runs_apart(settings: VerifierSettings) -> bool:
    """What the settings say, else whether the device is CUDA.

    On a CPU the forward itself takes the cores that a second process would use.
    """
    if settings.engine_process is not None:
        return settings.engine_process
    if settings.device == "auto":
        return cuda_devices() > 0
    return settings.device.startswith("cuda")


def cuda_devices() -> int:
    """How many devices the CUDA driver shows to this process; 0 without a driver."""
    for name in _LIBRARIES:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
        _log.debug("the CUDA driver %s shows no device", name)
    return 0
