"""What is not kept: deleted experiments after their time, files that nobody names, a write-ahead log that has grown.

The leader purges rows; every process takes away files from its own disk, which may not be that of the others.
"""

from __future__ import annotations

from app.services.context import Context
from app.store.records import purging

#: Experiments that are purged at once, and files that are looked up at once.
_EXPERIMENTS, _FILES = 10, 500
#: A file that no row names is left for so long: its upload may not have its row yet.
UNNAMED_SECONDS = 3600.0


def purge(ctx: Context) -> int:
    """Delete what belongs to experiments that were deleted long enough ago; return how many."""
    with ctx.store.read() as session:
        before = ctx.store.now(session) - 86_400 * ctx.settings.deleted_retention_days
        found = purging.deleted_before(session, before, _EXPERIMENTS)
    for experiment_id in found:
        _purge(ctx, experiment_id)
    return len(found)


def _purge(ctx: Context, experiment_id: str) -> None:
    with ctx.store.read() as session:
        numbers = purging.numbers_of_runs(session, experiment_id)
    for number in numbers:
        with ctx.store.write(bulk=True) as session:
            purging.forget_run(session, number)
    with ctx.store.write(bulk=True) as session:
        purging.forget(session, experiment_id)


def collect_files(ctx: Context) -> int:
    """Remove files from this process's disk that no row names any more; return how many bytes that frees."""
    old = ctx.files.older_than(UNNAMED_SECONDS)
    freed = 0
    for first in range(0, len(old), _FILES):
        piece = dict(old[first : first + _FILES])
        with ctx.store.read() as session:
            unnamed = piece.keys() - purging.named(session, piece.keys())
        for sha256 in unnamed:
            if ctx.files.remove(sha256, older_than=UNNAMED_SECONDS):  # one uploaded again has no row yet
                freed += piece[sha256]
    return freed
