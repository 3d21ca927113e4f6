"""Quotas of files and points: above them new work is refused; what is queued or runs goes on to its end."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.errors import ConflictError
from app.services.context import Context
from app.store.records import quotas

_MIB = 2**20


def check(ctx: Context, session: Session, owner: str, name: str) -> None:
    """Refuse new work of an owner whose experiments, or all together, hold as much as they may.

    Args:
        ctx: of the process.
        session: reads.
        owner: of the experiment that is to get work.
        name: by which people know the owner.

    Raises:
        ConflictError: ``over_quota`` names the quota and the remedy.
    """
    settings = ctx.settings
    ones = f"experiments of {name}"
    _check_files(session, settings.owner_quota_bytes, "LOCKSTEP_OWNER_QUOTA_BYTES", ones, owner)
    _check_points(session, settings.owner_quota_points, "LOCKSTEP_OWNER_QUOTA_POINTS", ones, owner)
    _check_files(session, settings.quota_bytes, "LOCKSTEP_QUOTA_BYTES", "all experiments", None)
    _check_points(session, settings.quota_points, "LOCKSTEP_QUOTA_POINTS", "all experiments", None)


def _check_files(session: Session, quota: int, setting: str, whose: str, owner: str | None) -> None:
    if quota and (held := quotas.file_bytes(session, owner)) >= quota:
        raise _refused(f"{whose} hold {held / _MIB:,.1f} of {quota / _MIB:,.1f} MiB of files ({setting})")


def _check_points(session: Session, quota: int, setting: str, whose: str, owner: str | None) -> None:
    if quota and (held := quotas.num_points(session, owner)) >= quota:
        raise _refused(f"{whose} hold {held:,} of {quota:,} points of metrics ({setting})")


def _refused(told: str) -> ConflictError:
    remedy = "delete experiments that are not needed, or have an operator raise it"
    return ConflictError(f"{told}; {remedy}", code="over_quota")
