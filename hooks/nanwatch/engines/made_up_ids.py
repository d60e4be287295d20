"""Ids for requests that nobody named: never the same twice, in any process, on any day."""

import os
from itertools import count, islice
from uuid import uuid4

_PREFIX = "anon-"
_numbers = count()
_process = ""


def made_up_ids(how_many: int) -> list[str]:
    """Return new ids, like "anon-3f2a9c1b7d4e-17"."""
    return [f"{_process}-{number}" for number in islice(_numbers, how_many)]


def is_made_up(request_id: str) -> bool:
    """Whether an id is one of these, or of one of their children."""
    return request_id.startswith(_PREFIX)


def _name_this_process() -> None:
    global _process  # noqa: PLW0603  a forked child goes on under a name of its own
    _process = f"{_PREFIX}{uuid4().hex[:12]}"


_name_this_process()
os.register_at_fork(after_in_child=_name_this_process)
