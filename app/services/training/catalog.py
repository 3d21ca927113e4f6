"""The registries of tasks that workers have: each is kept once, however many workers announce it.

A registry may hold a thousand names, and the rows of workers are read at every turn of the queue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.services.context import Context
from app.store.queue import scheduling
from lockstep.protocol import TaskGroup

_PREFIX = "tasks:"


def keep(ctx: Context, groups: Sequence[TaskGroup]) -> str:
    """Store a registry that is not stored yet; return the key by which ``read`` finds it."""
    text = json.dumps([group.model_dump(exclude_none=True) for group in groups], sort_keys=True)
    key = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]
    try:
        with ctx.store.write() as session:
            if scheduling.get_meta(session, key) is None:
                scheduling.set_meta(session, key, text)
    except IntegrityError:  # another worker brought the same one in the meantime
        pass
    return key


def read(session: Session, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {id: ``arguments`` or ``defect``} of registries; a task that can be built somewhere has no defect."""
    catalogue: dict[str, dict[str, Any]] = {}
    for key in keys:
        for group in json.loads(scheduling.get_meta(session, key) or "[]"):
            facts = {name: value for name, value in group.items() if name != "ids"}
            catalogue.update({task: facts for task in group["ids"] if "defect" in catalogue.get(task, {"defect": ""})})
    return catalogue
