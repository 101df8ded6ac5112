"""Let glibc keep freed memory for reuse, since a step on a CPU always needs the same again.

By default glibc returns large blocks to the system, which zeroes their pages whenever they are
allocated again: up to a fifth of a step's time (docs/results.md). Accelerators have allocators of
their own, and their hosts have many threads, which would wait for the one heap.
"""

import ctypes
import os
import pathlib

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # parameters of mallopt, from malloc.h
# Device files of TPUs, NVIDIA and AMD GPUs, and GPUs in Windows' Linux.
_ACCELERATORS = ("accel*", "vfio/*", "nvidia[0-9]*", "kfd", "dxg")


def keep_freed_memory(devices: pathlib.Path = pathlib.Path("/dev")) -> bool:
    """Have all threads allocate from one heap that never shrinks; return whether they do.

    Call it before JAX starts its threads. Does nothing without glibc, beside an accelerator, or
    where the user set MALLOC_ variables.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    is_set = any(name.startswith("MALLOC_") for name in os.environ)
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu" or not _has_accelerator(devices)
    if mallopt is None or is_set or not on_cpu:
        return False
    settings = ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1))
    return all([mallopt(parameter, value) for parameter, value in settings])


def _has_accelerator(devices: pathlib.Path) -> bool:
    return any(True for pattern in _ACCELERATORS for _ in devices.glob(pattern))
