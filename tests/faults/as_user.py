"""Run a piece of Python as another user: `python -m tests.faults.as_user UID GROUP,... SCRIPT ARG...`.

The interpreter itself may lie where only root can read, so it is started as root, imports all that
will be needed, and gives its rights away only then.
"""

import logging
import os
import runpy
import sys


def main() -> None:
    """Become the user and run the script."""
    user, groups, script, *rest = sys.argv[1:]
    _import_everything()
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(user))
    os.setuid(int(user))
    os.environ["HOME"] = "/"
    sys.argv = [script, *rest]
    runpy.run_module(script, run_name="__main__", alter_sys=True)


def _import_everything() -> None:
    """Import what engine and sidecar import late: a server answers once, a probe observes once."""
    import tempfile
    from pathlib import Path

    import torch
    import uvicorn
    from fastapi.testclient import TestClient

    from nanwatch import NanProbe
    from nanwatch.journal.reader import JournalReader
    from nanwatch.settings import Settings
    from nanwatch_sidecar.app import create_app
    from nanwatch_sidecar.journal_view import JournalView

    "host".encode("idna")
    logging.getLogger("nanwatch").disabled = True  # the NaN of this rehearsal is nobody's news
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("NANWATCH_JOURNAL")
        os.environ["NANWATCH_JOURNAL"] = folder + "/warm"
        with NanProbe() as probe:
            probe.observe(torch.full((1, 4), float("nan")), ["warm"]).result()
        view = JournalView(JournalReader(Path(folder, "warm")))
        app = create_app(Settings(), view)
        TestClient(app).get("/metrics")
        uvicorn.Config(app, log_config=None).load()
        view.close(5)
        logging.getLogger("nanwatch").disabled = False
        del os.environ["NANWATCH_JOURNAL"]
        if before is not None:
            os.environ["NANWATCH_JOURNAL"] = before


if __name__ == "__main__":
    main()
