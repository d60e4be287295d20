"""The one rule for all routes: this server is only looked at.

GET is answered by the routes, HEAD like GET without the body, anything else with 405.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

ALLOWED = ("GET", "HEAD")


class ReadOnly:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._app(scope, receive, send)
        elif scope["method"] == "HEAD":  # the server leaves the body away
            await self._app({**scope, "method": "GET"}, receive, send)
        else:
            await _refuse(scope["method"])(scope, receive, send)


def _refuse(method: str) -> JSONResponse:
    allowed = ", ".join(ALLOWED)
    detail = f"{method} is not allowed: nanwatch is only looked at, with {allowed}"
    return JSONResponse({"detail": detail}, status_code=405, headers={"Allow": allowed})
