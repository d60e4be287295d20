"""Boot time: the clock of the journal, which no jump of the wall clock touches."""

import os
import time
from pathlib import Path


def boot_ns() -> int:
    """Nanoseconds since boot, suspend included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def clock_domain() -> str:
    """Name the clock that boot times are read from: they compare only under an equal name.

    A container may have a time namespace of its own, in which boot time is shifted.
    """
    return f"{_read_boot_id()}/{_time_namespace()}"


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _time_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return "none"
