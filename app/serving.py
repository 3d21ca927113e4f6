"""The server process: what listens, and how it ends.

Asked to stop, it takes no more connections, answers who waits for work or for a barrier, tells live readers to come
back, and lets what is being answered finish. What hangs is left behind: the process ends by its own clock.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from app.routes.live import MAX_HEAD_BYTES
from app.settings import Settings

#: How long answers that are on their way may take once the server is to stop; a client that stalls uses all of it.
_GRACE_SECONDS = 6
#: A connection without a request ends after so long: later than proxies (nginx: 60 s) and clients give theirs up. Who
#: sends on one that ends in that moment gets no answer, and a POST is not sent again.
_IDLE_SECONDS = 75
#: After so long the process ends whatever hangs: nothing in it is needed, for the store is the truth.
_END_SECONDS = 9.0


def config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return how an application is served."""
    served = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=_IDLE_SECONDS,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=",".join(settings.trusted_proxies),
        ws_max_size=64 * 1024,
        # a thousand viewers of one experiment get the same bytes: deflated for each, they waited half a second
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # app.routes.live has its own, which a page can answer and a client can see
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return served


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn is to be logged: of an answer that is cut off we have logged why ourselves."""
    return record.getMessage() != "ASGI callable returned without completing response."


class Server(uvicorn.Server):
    """Uvicorn that says when it can be asked, and lets nobody wait once it is to stop.

    Args:
        app: what it serves.
        settings: of the process.
        listening: called once connections are taken.
    """

    def __init__(self, app: FastAPI, settings: Settings, listening: Callable[[], None] = lambda: None) -> None:
        self._app, self._listening = app, listening
        super().__init__(config(app, settings))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then say so."""
        await super().startup(sockets)
        if self.started:
            self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send everybody away who waits, then end as uvicorn does."""
        end = threading.Timer(_END_SECONDS, _end)
        end.daemon = True
        end.start()
        await self.send_away()
        await super().shutdown(sockets)

    async def send_away(self) -> None:
        """Answer who waits for work or for a barrier, and tell live readers to come back."""
        self._app.state.ctx.bell.close()
        await self._app.state.hub.stop()


def _end() -> None:
    sys.stderr.write(f"the server did not end within {_END_SECONDS:g} s; it is ended where it hangs\n")
    sys.stderr.flush()
    os._exit(0)
