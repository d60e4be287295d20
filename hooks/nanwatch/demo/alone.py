"""The demo's engine without a sidecar: it writes the journal, and somebody else's sidecar reads it.

This is the half that runs in a container of its own.
"""

from collections.abc import Callable

from nanwatch import request_ids, watch_generate
from nanwatch.failfast import NanLogitsError

from .clients import next_batch
from .model import DemoModel
from .pace import Pace
from .verdict import DIED_OF_NAN, WELL, Planted


class EngineAlone:
    """Serves until its time is over or, under fail-fast, until the first NaN."""

    def __init__(
        self, model: DemoModel, pace: Pace, *, model_name: str, say: Callable[[str], object]
    ) -> None:
        self._model, self._pace, self._say = model, pace, say
        self._model_name = model_name
        self._planted = Planted()

    def run(self) -> int:
        """Serve to the end; returns the exit status."""
        try:
            with watch_generate(self._model.model, model_name=self._model_name):
                while not self._pace.over():
                    self._serve()
                    self._pace.rest()
        except NanLogitsError as error:
            self._say(f"generate() raised; no client of this batch was sent anything\n{error}")
            return DIED_OF_NAN
        self._say(self._news())
        return WELL

    def _serve(self) -> None:
        poison = self._pace.poison_due()
        batch = next_batch(self._planted, poison=poison)
        with request_ids(batch.ids):
            answers = self._model.answer(batch.prompts)
        if poison or self._pace.news_due():
            self._say(f"{self._news()}; {batch.exchange(answers)}")

    def _news(self) -> str:
        return f"{self._planted.requests} requests, {len(self._planted.corrupted_ids)} poisoned"
