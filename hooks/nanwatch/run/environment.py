"""The environment of what `nanwatch run` starts: how nanwatch gets into a program that does not name it.

    PYTHONPATH        begins with startup/, whose sitecustomize.py every Python of the program's runs as
                      it starts, children of children too, as long as they inherit the variable
    NANWATCH_ENABLED  1, unless it is given
    NANWATCH_RUN_ID   this run
Nothing on the disk is changed. A Python that looks away is not reached: -S (no site), -E and -I
(no PYTHONPATH), and a child that is given another environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from nanwatch.settings import Settings

STARTUP = Path(__file__).with_name("startup")


def environment_of_child(given: Mapping[str, str], settings: Settings, run_id: str) -> dict[str, str]:
    """Return the variables of a program that nanwatch is to watch; switched off, it is not reached into."""
    environment = {"NANWATCH_ENABLED": "1", **given, "NANWATCH_RUN_ID": run_id}
    if settings.enabled is False:
        return environment
    # An empty PYTHONPATH is none; an empty entry in it would be the working directory.
    paths = [str(STARTUP), *filter(None, [given.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths)}
