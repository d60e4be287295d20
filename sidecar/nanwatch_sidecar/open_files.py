"""Descriptors: each journal file that is followed holds one, and clients must not go without."""

import resource
import sys
from contextlib import suppress

RESERVED = 200  # for MOST_CONNECTIONS, and what Python and the loop hold


def most_followed_files() -> int:
    """Raise this process's own limit of open files as far as it may, and return what that leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the system may allow less by now
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(soft // 2, soft - RESERVED)
