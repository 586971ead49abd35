"""The C library's heap: keeping freed memory in the process, so that timings compare warm memory on both sides.

glibc serves a large allocation by mapping fresh pages and unmaps them when it is freed; every step then pays page
faults that no arena and no caching allocator would (64 MiB ReLU: 35 ms into fresh memory, 9 ms into warm memory).
"""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of mallopt(3), from malloc.h
_NEVER_B = 2**31 - 1  # mallopt takes an int; nearly 2 GiB of free heap top are never given back
_PAD_B = 64 * 2**20

_warm = False


def keep_warm(touch_B: int = 0) -> bool:
    """Tells glibc to serve every allocation from the heap and to give nothing back to the system.

    It holds for the rest of the process and cannot be undone. Benchmarks and the demo call it, for both sides of a
    comparison; lowtide never does on its own. glibc before 2.38 often cannot reuse a freed aligned block for one of
    the same size, so a heap takes a few steps, or touched bytes, to become warm.

    Arguments:
        touch_B: bytes to map and write now, so that later allocations find them warm.

    Returns: whether it worked; False where the C library is not glibc.
    """
    global _warm
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    accepted = [mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, _NEVER_B), mallopt(_TOP_PAD, _PAD_B)]
    _warm = all(answer == 1 for answer in accepted)
    if _warm and touch_B > 0:
        _touch(touch_B)
    return _warm


def _touch(size_B: int) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = (ctypes.c_void_p,), None
    block = libc.malloc(size_B)
    if block:
        ctypes.memset(block, 0, size_B)
        libc.free(block)


def is_warm() -> bool:
    """Whether `keep_warm` has worked in this process; measured times depend on it."""
    return _warm
