"""Memory that is given back: what a burst of lines or a long list took does not stay with the sidecar.

glibc learns from every large block that is freed, and keeps ever more of them at hand; with 10,000 listed
requests that held 4 MB for good. Set by hand, its two thresholds stay where they are.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_BYTES = 1 << 16


def give_memory_back() -> None:
    """Let glibc return blocks from 64 kB on as soon as they are freed; another C library is left alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(parameter, _BYTES)
