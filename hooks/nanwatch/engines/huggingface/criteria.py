"""Tells when generate() has chosen the tokens of a step, and which of its sequences that ended.

generate() keeps to itself which rows are finished, but it works that out from what its stopping
criteria return. So they are wrapped: same criteria, same answer, and a word to the watcher.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import StoppingCriteriaList


class ReportingCriteria(StoppingCriteriaList):
    """Stopping criteria that report what they return, [R] bool: which sequences are done.

    A list of the same criteria: generate() also looks for end-of-sequence tokens and for the
    maximum length among them.
    """

    def __init__(self, criteria: StoppingCriteriaList, report: Callable[[Tensor], None]) -> None:
        super().__init__(criteria)
        self._criteria, self._report = criteria, report

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the criteria, report, and return what they said."""
        is_done = self._criteria(*args, **kwargs)
        self._report(is_done)
        return is_done
