"""Whose disk a stored file lies on, where several servers have disks of their own: one that lacks it asks the others.

Each server says with every sweep that its folder of files is there. A file is given up for all only when every folder
that was there lately lacks it; servers that share a folder have one name for it, and one word decides.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.services.context import Context
from app.store.queue import scheduling

#: A folder that has not been announced for so many sweeps is gone.
_LATELY_SWEEPS = 12
#: After so long nothing of it is kept: each server that had a disk of its own would leave a note for ever, and so would
#: each question for whose answer nobody came back.
_FORGOTTEN_SECONDS = 86_400.0
_DISK, _LACKING, _SINCE = "disk:", "lacking:", "since:"


def announce(ctx: Context) -> None:
    """Say that this server's folder is there, and answer for each file that another lacks whether it lies here."""
    with ctx.store.write() as session:
        now = ctx.store.now(session)
        scheduling.set_meta(session, _DISK + ctx.files.identity, repr(now))
        for key, seen in scheduling.metas(session, _DISK).items():
            if float(seen) < now - _FORGOTTEN_SECONDS:
                scheduling.drop_meta(session, key)
        _forget_questions(session, now)
        asked = scheduling.metas(session, _LACKING)
    for key, said in asked.items():
        sha256, *lacking = said.split()
        if ctx.files.identity in lacking:
            continue
        with ctx.store.write() as session:
            if ctx.files.has(sha256):
                scheduling.drop_meta(session, key)  # it is not lost; who lacks it may ask again
            else:
                _note(ctx, session, sha256)


def _forget_questions(session: Session, now: float) -> None:
    """Note since when each file is asked for, and drop what has been asked for too long or has its answer."""
    asked = {key.removeprefix(_LACKING) for key in scheduling.metas(session, _LACKING)}
    noted = {key.removeprefix(_SINCE): float(at) for key, at in scheduling.metas(session, _SINCE).items()}
    for name in asked - set(noted):
        scheduling.add_meta(session, _SINCE + name, repr(now))
    for name, at in noted.items():
        if at < now - _FORGOTTEN_SECONDS:
            scheduling.drop_meta(session, _LACKING + name)
        if name not in asked or at < now - _FORGOTTEN_SECONDS:
            scheduling.drop_meta(session, _SINCE + name)


def is_lost(ctx: Context, session: Session, sha256: str) -> bool:
    """Note that this server lacks a file; return whether every other one does, too. If not, they are asked."""
    lacking = _note(ctx, session, sha256)
    since = ctx.store.now(session) - _LATELY_SWEEPS * ctx.settings.sweep_seconds
    disks = {name.removeprefix(_DISK) for name, seen in scheduling.metas(session, _DISK).items() if float(seen) > since}
    if not lacking >= disks:
        return False
    scheduling.drop_meta(session, _key(sha256))
    return True


def _note(ctx: Context, session: Session, sha256: str) -> set[str]:
    """Add this server's folder to those that lack a file, and return them all."""
    key = _key(sha256)
    scheduling.add_meta(session, key, sha256)
    said = (scheduling.get_meta(session, key, lock=True) or sha256).split()
    lacking = {*said[1:], ctx.files.identity}
    scheduling.set_meta(session, key, " ".join([sha256, *sorted(lacking)]))
    return lacking


def _key(sha256: str) -> str:
    return _LACKING + sha256[:40]  # a key has 64 characters
