"""The rounds of an experiment that count, for tests that compare digests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from app.store.records.results import current_rounds
from app.store.schema import tables as t


def counted_rounds(session: Session, experiment_id: str) -> Sequence[Row[Any]]:
    """Return the rounds that count with ``run_id``, by run and round."""
    query = (
        select(t.round_result, t.run.c.id.label("run_id"))
        .join(t.run, t.run.c.no == t.round_result.c.run_no)
        .join(t.run_attempt, current_rounds(t.round_result))
        .where(t.run.c.experiment_id == experiment_id)
        .order_by(t.round_result.c.run_no, t.round_result.c.round)
    )
    return session.execute(query).all()
