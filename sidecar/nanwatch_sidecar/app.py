"""The routes.

Every route but /healthz first asks the view for a poll, in a worker thread and with a bound: a
folder that hangs makes an answer old, never late, and /healthz not even that.
"""

from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import starmap
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import disable_created_metrics

from nanwatch.settings import Settings

from . import models
from .collector import NanwatchCollector
from .exposition import Exposition
from .health import Limits, NumericHealth, QueryError, Readiness, numeric_health, readiness
from .journal_view import JournalView
from .landing import page
from .read_only import ReadOnly
from .text import valid_text

MOST_LISTED = 10_000
_BAD_REQUEST: dict[int | str, dict[str, Any]] = {400: {"model": models.ErrorOut}}


def create_app(settings: Settings, view: JournalView, on_scrape: Callable[[], None] | None = None) -> FastAPI:
    """Return the sidecar's ASGI app over a journal; `on_scrape` is called for each scrape of /metrics."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    app = FastAPI(title="nanwatch", version=installed_version(), docs_url=None, redoc_url=None)
    app.add_middleware(ReadOnly)
    _add_pages(app, view)
    _add_metrics(app, settings, view, on_scrape)
    _add_health(app, settings, view)
    _add_requests(app, view)
    return app


def installed_version() -> str:
    """Return the version of this distribution."""
    try:
        return version("nanwatch")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def _add_pages(app: FastAPI, view: JournalView) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def landing() -> HTMLResponse:
        return HTMLResponse(page(str(view.folder), app.version))

    @app.get("/healthz", summary="Whether this sidecar lives; never speaks of NaN")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}


def _add_metrics(
    app: FastAPI, settings: Settings, view: JournalView, on_scrape: Callable[[], None] | None
) -> None:
    exposition = Exposition(NanwatchCollector(view, fail_fast=settings.fail_fast, version=app.version))

    @app.get("/metrics", response_class=Response, summary="Counters for Prometheus, as text or OpenMetrics")
    def metrics(request: Request, names: Annotated[list[str], Query(alias="name[]")] = []) -> Response:  # noqa: B006
        view.refresh()
        headers = request.headers
        scrape = exposition.render(headers.get("accept", ""), headers.get("accept-encoding", ""), names)
        if on_scrape is not None:
            on_scrape()
        return Response(scrape.body, headers=scrape.headers)


def _add_health(app: FastAPI, settings: Settings, view: JournalView) -> None:
    @app.get("/readyz", responses=_both(Readiness), summary="503 until a source has been seen")
    def readyz() -> Response:
        view.refresh()
        found = readiness(view.folder, view.sources, view.problems)
        return _json(asdict(found), ok=found.ready)

    @app.get(
        "/health/numeric",
        responses={**_both(NumericHealth), **_BAD_REQUEST},
        summary="503 while too many requests come out corrupted",
    )
    def health_numeric(
        window: Annotated[str | None, Query(description="Seconds to look back, from 1 to 3600.")] = None,
        requests: Annotated[str | None, Query(description="Corrupted requests that are too many.")] = None,
        ratio: Annotated[str | None, Query(description="... if they are this share of all, 0 to 1.")] = None,
    ) -> Response:
        try:
            limits = Limits.of(settings, window, requests, ratio)
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        view.refresh()
        with view.lock:
            found = numeric_health(view.sources, limits, view.now())
        return _json(asdict(found), ok=found.healthy)


def _add_requests(app: FastAPI, view: JournalView) -> None:
    @app.get(
        "/v1/corrupted-requests",
        response_model=models.CorruptedRequests,
        responses=_BAD_REQUEST,
        summary="The newest corrupted requests",
    )
    def corrupted_requests(
        since: Annotated[str | None, Query(description="Unix seconds, or an instant by RFC 3339.")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        model_name: Annotated[str | None, Query(description="Only this model's.")] = None,
        all_ranks: Annotated[bool, Query(description="Also what ranks saw that only annotate.")] = False,  # noqa: FBT002  a query parameter
    ) -> Response:
        earliest = _since(since)
        view.refresh()
        with view.lock:
            newest = models.newest_requests(
                (*view.sources, *view.drills),
                since=earliest,
                limit=limit,
                model_name=model_name,
                all_ranks=all_ranks,
            )
        pieces = models.CorruptedRequests.written(starmap(models.described, newest))
        return StreamingResponse(pieces, media_type="application/json")


def _both(model: type[Any]) -> dict[int | str, dict[str, Any]]:
    """Describe an answer that looks the same whether it is good or bad."""
    return {200: {"model": model}, 503: {"model": model}}


def _since(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return models.instant(value)
    except ValueError:
        takes = "Unix seconds, or an instant by RFC 3339 with its offset, as 2030-01-31T12:00:00Z"
        raise HTTPException(400, f"since={value!r} is not understood: it takes {takes}") from None


def _json(content: dict[str, Any], *, ok: bool) -> JSONResponse:
    return JSONResponse(_valid(content), status_code=200 if ok else 503)


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {key: _valid(item) for key, item in value.items()}
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value
