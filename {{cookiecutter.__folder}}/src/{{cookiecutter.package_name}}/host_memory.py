"""Memory of the host that one step frees is kept for the next one, or given back."""

from __future__ import annotations

import ctypes

# Names of glibc's malloc.h; a threshold is an int.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**30
# The most that every glibc takes. Larger blocks between small ones leave holes that nothing fits into: a training with blocks
# of 500 MiB grew to 14 GiB instead of 2.
LARGEST_KEPT_BLOCK = 2**25
SMALLEST_RETURNED_BLOCK = 2**18


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees in blocks of up to 32 MiB, and up to 1 GiB at the end of its heap.

    By itself, glibc gives every large block back to the system, which clears its pages anew in the next step: for a small
    CNN on a CPU, that takes a quarter of the time. Where there is another C library, nothing changes.
    """
    _set(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
    _set(M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed_memory() -> None:
    """Let this process give the memory of blocks of 256 KiB and more back to the system when it frees them."""
    _set(M_MMAP_THRESHOLD, SMALLEST_RETURNED_BLOCK)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(parameter, value)
