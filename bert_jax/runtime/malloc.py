"""Let glibc keep freed memory for reuse, since a step on a CPU always needs the same again.

By default glibc returns large blocks to the system, which zeroes their pages whenever they are
allocated again: 6 to 14% of a small run's processor time (docs/results.md). Accelerators have
allocators of their own, and their hosts have many threads, which would wait for the one heap.
"""

import ctypes
import os
import pathlib
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # parameters of mallopt, from malloc.h
# Device files of TPUs and of NVIDIA's cards. /dev/vfio/vfio and /dev/accel are on other hosts too.
_DEVICE_FILES = ("dev/accel[0-9]*", "dev/vfio/[0-9]*", "dev/nvidia[0-9]*")


def find_accelerators(root: pathlib.Path = pathlib.Path("/")) -> list[pathlib.Path]:
    """Return the device files of this host's accelerators; needs no JAX."""
    return [path for files in _DEVICE_FILES for path in sorted(root.glob(files))]


def keep_freed_memory() -> bool:
    """Have all threads allocate from one heap that never shrinks; return whether glibc accepted it.

    Call it before JAX starts its threads. Does nothing where should_keep says no, or where the C
    library has no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not should_keep(os.environ, find_accelerators()):
        return False
    settings = ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1))
    return all([mallopt(parameter, value) for parameter, value in settings])


def should_keep(environ: Mapping[str, str], accelerators: list[pathlib.Path]) -> bool:
    """Return whether the run is on the CPU and the user set nothing of glibc's allocator."""
    is_set = any(name.startswith("MALLOC_") for name in environ)
    is_set = is_set or "glibc.malloc" in environ.get("GLIBC_TUNABLES", "")
    return not is_set and (environ.get("JAX_PLATFORMS") == "cpu" or not accelerators)
