"""The demo's service: answers batches of prompts, poisons some, tells what the sidecar says of it.

Everything it tells about NaN was fetched from the sidecar; what was planted is only compared, at the end.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanwatch import request_ids, watch_generate
from nanwatch.failfast import NanLogitsError

from .clients import next_batch
from .model import DemoModel
from .others import other_engines
from .pace import Pace
from .sidecar import Scrape, Sidecar, wait_for
from .verdict import CAME_OUT_WRONG, DIED_OF_NAN, WELL, Planted, Reported, differences

MODEL_NAME = "demo"
ONCE_POISONED = 3
REPORT_SECONDS = 10.0

_REQUESTS, _CORRUPTED, _STEPS = "nanwatch_requests_total", "corrupted_requests_total", "nanwatch_steps_total"
_INDENT = " " * 7


class DemoService:
    """Serves until its time is over or, with `once`, it has been poisoned three times.

    Args:
        model: answers.
        sidecar: is asked.
        pace: says when.
        journal: the folder that both write to and read from.
        model_name: the label to look for.
        once: whether to come to an end, with a verdict.
        say: takes each line of output.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        model: DemoModel,
        sidecar: Sidecar,
        pace: Pace,
        *,
        journal: Path,
        model_name: str,
        once: bool,
        say: Callable[[str], object],
    ) -> None:
        self._model, self._sidecar, self._pace, self._say = model, sidecar, pace, say
        self._journal, self._model_name, self._once = journal, model_name, once
        self._planted = Planted()
        self._began, self._began_monotonic = time.time(), time.monotonic()
        self._before = sidecar.scrape()

    def run(self) -> int:
        """Serve to the end; returns the exit status."""
        try:
            with watch_generate(self._model.model, model_name=self._model_name):
                while not self._pace.over() and not self._is_enough():
                    self._serve()
                    self._pace.rest()
        except NanLogitsError as error:
            return self._died(error)
        return self._judge()

    def _is_enough(self) -> bool:
        return self._once and len(self._planted.corrupted_ids) >= ONCE_POISONED

    def _serve(self) -> None:
        """Answer one batch, and tell of it where something is to be told."""
        poison = self._pace.poison_due()
        batch = next_batch(self._planted, poison=poison)
        with request_ids(batch.ids):
            answers = self._model.answer(batch.prompts)
        sent = batch.exchange(answers)
        if poison:
            self._tell(
                f"\n{self._age()}  a token of this prompt has NaN for its embedding; the client was sent",
                sent,
            )
            self._tell_what_the_sidecar_says(batch.shown_id)
        elif self._pace.news_due():
            self._tell(self._news(), sent)

    def _tell(self, headline: str, *lines: str) -> None:
        self._say(headline)
        for line in lines:
            self._say(_INDENT + line)

    def _age(self) -> str:
        return f"{time.time() - self._began:3.0f} s"

    def _news(self) -> str:
        now = self._sidecar.scrape()
        steps, requests, corrupted = (
            self._since_begin(now, name) for name in (_STEPS, _REQUESTS, _CORRUPTED)
        )
        return f"{self._age()}  {steps} steps, {requests} requests, {corrupted} corrupted"

    def _tell_what_the_sidecar_says(self, request_id: str) -> None:
        asked = time.monotonic()
        if not wait_for(lambda: self._listed(request_id) is not None, REPORT_SECONDS):
            self._say(f"{_INDENT}the sidecar does not list it after {REPORT_SECONDS:g} s")
            return
        self._say(f"{_INDENT}and the sidecar says, {time.monotonic() - asked:.1f} s later")
        # Its last rows come with the next line of the journal.
        wait_for(lambda: (self._listed(request_id) or {}).get("finished", False), REPORT_SECONDS)
        found = self._listed(request_id) or {}
        first = f"first at step {found['first_step']} ({found['phase']})"
        self._say(
            f"{_INDENT}{request_id}  {found['nan_values']:,} NaN, logits rows {found['nan_rows']}, {first}"
        )
        self._tell_lines(self._sidecar.scrape(), _INDENT)
        self._say("")

    def _listed(self, request_id: str) -> dict[str, Any] | None:
        """Return what /v1/corrupted-requests has of one request."""
        listed = self._sidecar.corrupted_requests(self._began)
        return next((found for found in listed if found["request_id"] == request_id), None)

    def _tell_lines(self, scrape: Scrape, indent: str = "") -> None:
        for name in (_REQUESTS, _CORRUPTED):
            for line in scrape.lines(name, self._model_name):
                self._say(indent + line)

    def _died(self, error: NanLogitsError) -> int:
        """Fail-fast: the batch got no answers, but the counter has moved."""
        self._tell(f"\n{self._age()}  generate() raised; no client of this batch was sent anything")
        self._tell(f"{_INDENT}NanLogitsError: {error}")
        for request_id in error.requests:
            self._tell_what_the_sidecar_says(request_id)
        return DIED_OF_NAN

    def _judge(self) -> int:
        """Compare all numbers, and end with the counter that it is about."""
        wait_for(lambda: not differences(self._planted, self._reported()), REPORT_SECONDS)
        scrape = self._sidecar.scrape()
        wrong = differences(self._planted, self._reported())
        poisoned = ", ".join(self._planted.corrupted_ids) or "none"
        self._say(f"{self._planted.requests} requests were served, poisoned of these: {poisoned}")
        for sentence in wrong or ["the sidecar reports exactly these"]:
            self._say(f"WRONG: {sentence}" if wrong else sentence)
        for other in other_engines(self._journal, self._began_monotonic) if wrong else ():
            self._say(f"another engine wrote to this journal meanwhile, and is counted with it: {other}")
        self._tell_lines(scrape)
        return CAME_OUT_WRONG if wrong else WELL

    def _reported(self) -> Reported:
        now = self._sidecar.scrape()
        return Reported(
            requests=self._since_begin(now, _REQUESTS),
            corrupted_requests=self._since_begin(now, _CORRUPTED),
            corrupted_ids=tuple(self._corrupted_ids()),
            unattributed_nan_rows=self._since_begin(now, "nanwatch_unattributed_nan_rows_total"),
            dropped_steps=self._since_begin(now, "nanwatch_dropped_steps_total"),
        )

    def _since_begin(self, now: Scrape, name: str) -> int:
        """Return how far a counter has come: a journal that was there before does not begin at 0."""
        return now.total(name, self._model_name) - self._before.total(name, self._model_name)

    def _corrupted_ids(self) -> list[str]:
        return [found["request_id"] for found in self._sidecar.corrupted_requests(self._began)]
