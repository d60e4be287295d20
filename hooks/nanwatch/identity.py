"""Who a source is: host, process, rank, GPU, and which start of the engine it lives in."""

import os
import platform
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .journal.clock import boot_ns, clock_domain
from .journal.line import Labels, StartLine
from .journal.totals import Totals

_lives: Counter[tuple[str, Labels]] = Counter()


def start_line(  # noqa: PLR0913  each says one thing of its own about how a life begins
    labels: Labels, given_life: str | None, *, device: Any, counting: bool, fail_fast: bool, run: str = ""
) -> StartLine:
    """Return how this life of a source begins.

    A second probe with the same labels in the same engine start gets a life of its own ("...#2"):
    its ids count from n = 0 again, and (life, request id, n) must not stand for two requests.
    """
    name = given_life or life()
    _lives[name, labels] += 1
    again = _lives[name, labels]
    return StartLine(
        life=name if again == 1 else f"{name}#{again}",
        pid=os.getpid(),
        device=str(device) if device is not None else "",
        versions=versions(),
        clock=clock_domain(),
        boot_ns=boot_ns(),
        wall_seconds=time.time(),
        totals=Totals(),
        counting=counting,
        fail_fast=fail_fast,
        run=run,
    )


def host() -> str:
    """Return this machine's name, as the network knows it."""
    return socket.gethostname()


def rank(environment: Mapping[str, str] = os.environ) -> str:
    """Return the process's rank: torchrun's RANK, "0" where there is none."""
    return environment.get("RANK") or "0"


def life(environment: Mapping[str, str] = os.environ) -> str:
    """Return one string that all ranks of one engine start share.

    torchrun's run id and restart count where torchrun started us; its default run id "none" is
    no id at all, there the agent process stands in. Else this process and its start time.
    """
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return _process_life(os.getpid())
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{run if run != 'none' else _process_life(os.getppid())}/{restarts}"


def gpu_uuid(device: Any) -> str:
    """Return the GPU's UUID as DCGM's exporter writes it, "" for a CPU or where torch has none.

    `device` is a torch.device, its name, or None for the current GPU if CUDA is in use already:
    asking for an identity never initialises CUDA.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    if device is None and not torch.cuda.is_initialized():
        return ""
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(chosen), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else ""


def versions() -> dict[str, str]:
    """Return the versions that tell one build from another; imports nothing that is not there yet."""
    from . import __version__

    found = {"nanwatch": __version__, "python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found


def _process_life(pid: int) -> str:
    return f"{_boot()}-{pid}-{_start_ticks(pid)}"


@cache
def _boot() -> str:
    return clock_domain()[:8]


def _start_ticks(pid: int) -> str:
    """Return when a process started, in clock ticks since boot: field 22 of /proc/PID/stat."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "0"
    return stat.rpartition(")")[2].split()[19]
