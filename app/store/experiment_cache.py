"""What of an experiment never changes after its submission, read once by each process.

Only columns that no statement updates may stand here: several processes share a database, and none
hears of another's changes. What changes (name, priority, placement, states) is read each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from app.store import experiments
from app.store.database.engine import KEPT
from app.store.rows.experiments import ArmRow
from app.store.schema import tables as t
from lockstep.spec.metrics import primary_of

_KEPT_EXPERIMENTS = 256


@dataclass(frozen=True)
class Facts:
    """The unchanging part of an experiment; its values are shared by all threads and only read."""

    owner: str
    seed: int
    rounds: int
    num_arms: int
    spec_hash: str
    lockstep: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    primary: str
    arms: tuple[ArmRow, ...]

    @property
    def grace_seconds(self) -> float:
        """How long the specification lets a child take to stop."""
        return float(self.lockstep["grace_seconds"])


class _Recent:
    """The experiments used last; the one not used for longest makes room."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._facts: OrderedDict[str, Facts] = OrderedDict()

    def get(self, experiment_id: str) -> Facts | None:
        with self._lock:
            if experiment_id in self._facts:
                self._facts.move_to_end(experiment_id)
            return self._facts.get(experiment_id)

    def keep(self, experiment_id: str, facts: Facts) -> None:
        with self._lock:
            self._facts[experiment_id] = facts
            if len(self._facts) > _KEPT_EXPERIMENTS:
                self._facts.popitem(last=False)


def of(session: Session, experiment_id: str) -> Facts:
    """Return the facts of an experiment that exists, deleted or not."""
    recent: _Recent = session.info[KEPT].setdefault("facts", _Recent())
    cached = recent.get(experiment_id)
    if cached is None:
        cached = _read(session, experiment_id)
        recent.keep(experiment_id, cached)
    return cached


def _read(session: Session, experiment_id: str) -> Facts:
    row = session.execute(_EXPERIMENT, {"experiment_id": experiment_id}).one()
    return Facts(
        owner=row.owner,
        seed=int(row.seed),
        rounds=row.rounds,
        num_arms=row.num_arms,
        spec_hash=row.spec_hash,
        lockstep=row.lockstep,
        checkpoint=row.checkpoint,
        primary=primary_of({"analysis": row.analysis, "env": row.env}),
        arms=tuple(experiments.arms(session, experiment_id)),
    )


_EXPERIMENT = select(
    t.experiment.c.owner,
    t.experiment.c.seed,
    t.experiment.c.rounds,
    t.experiment.c.num_arms,
    t.experiment.c.spec_hash,
    t.experiment.c.spec["lockstep"].label("lockstep"),
    t.experiment.c.spec["checkpoint"].label("checkpoint"),
    t.experiment.c.spec["analysis"].label("analysis"),
    t.experiment.c.spec["env"].label("env"),
).where(t.experiment.c.id == bindparam("experiment_id"))
