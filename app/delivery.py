"""Sends what webhooks are to be told; the only outgoing HTTP of the server."""

from __future__ import annotations

import threading

import httpx

from app.services import webhooks
from app.services.context import Context
from app.services.webhooks import ANSWER_SECONDS, Outgoing
from lockstep.logs import get_logger

_log = get_logger("webhooks")


class Courier:
    """Sends deliveries one after the other; a dead receiver costs ten seconds now and then, and only this thread.

    Args:
        ctx: of the process.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._stop = threading.Event()

    def ask_to_stop(self) -> None:
        """Let it end after the delivery it is at."""
        self._stop.set()

    def send_due(self) -> int:
        """Send all that is due; return how many were taken by their receivers."""
        taken = 0
        while not self._stop.is_set() and (outgoing := webhooks.take(self._ctx)) is not None:
            error = _post(outgoing)
            webhooks.note_outcome(self._ctx, outgoing, error)
            taken += error is None
            if error is not None:
                _log.warning("a webhook was not taken", webhook=outgoing.webhook.id, reason=error)
        return taken


def _post(outgoing: Outgoing) -> str | None:
    """Send one delivery; return why it was not taken, None when it was. No redirect is followed, no answer is read."""
    try:
        with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as http:
            request = http.build_request("POST", outgoing.url, content=outgoing.body, headers=outgoing.headers)
            answer = http.send(request, stream=True)
            answer.close()
    except (
        httpx.HTTPError,
        httpx.InvalidURL,
        UnicodeError,
    ) as error:  # the last of host names that cannot be asked for
        return f"{type(error).__name__}: {error}"[:500]
    return None if answer.is_success else f"HTTP {answer.status_code}"
