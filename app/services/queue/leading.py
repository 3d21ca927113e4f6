"""Which of several API processes sweeps: the leader, whose term the database clock bounds.

A row and not a lock of the database's: it holds through a pooler of connections, and it is seen who leads. Two leaders
would do no harm, for each act of the sweep is guarded; one saves the others the work.
"""

from __future__ import annotations

from app.services.context import Context
from app.store.queue import scheduling

#: A leader that has not swept for so many periods has gone.
_TERM_SWEEPS = 4
_KEY = "sweep_leader"


def is_leader(ctx: Context, me: str) -> bool:
    """Return whether a process leads; it does from now on where nobody does, and its term begins anew."""
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        leader, _, until = (scheduling.get_meta(session, _KEY, lock=True) or " 0").partition(" ")
        if leader not in ("", me) and now < float(until) <= now + _term(ctx):
            return False
        scheduling.set_meta(session, _KEY, f"{me} {now + _term(ctx)!r}")
    return True


def resign(ctx: Context, me: str) -> None:
    """Give up the lead, so that another process need not wait for the end of the term."""
    with ctx.store.write() as session:
        if (scheduling.get_meta(session, _KEY, lock=True) or "").startswith(f"{me} "):
            scheduling.set_meta(session, _KEY, " 0")


def _term(ctx: Context) -> float:
    return _TERM_SWEEPS * ctx.settings.sweep_seconds
