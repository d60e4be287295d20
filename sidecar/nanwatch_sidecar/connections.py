"""How long a client may keep a connection busy, and how many may be open.

uvicorn ends a connection that idles between two requests, but waits for ever for a request that never becomes
whole, and for a client that does not read its answer. Here each exchange has PATIENCE_SECONDS, from the
connection's beginning or its last answer; past MOST_CONNECTIONS a new one takes the place of the
one whose exchange began first. So nobody who only holds on keeps a scraper out, or fills the memory.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_SECONDS = 60.0
MOST_CONNECTIONS = 100


class BoundedConnection(H11Protocol):
    """uvicorn's connection, with an end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.began_at = self.loop.time()
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._begin_exchange()
        if len(self.connections) > MOST_CONNECTIONS:
            self._cut_oldest()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, or for the client to have read this answer."""
        super().on_response_complete()
        self._begin_exchange()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()

    def _begin_exchange(self) -> None:
        self.began_at = self.loop.time()
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(PATIENCE_SECONDS, self.transport.abort)

    def _cut_oldest(self) -> None:
        bounded = (one for one in self.connections if isinstance(one, BoundedConnection))
        oldest = min(bounded, key=lambda one: one.began_at)
        self.connections.discard(oldest)  # at once: it is told of its end only in the loop's next turn
        oldest.transport.abort()
