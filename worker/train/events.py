"""Events of a run that only its trainer can tell: start, update, evaluation, cross-evaluation (training.md 7.3).

Round, time, ids, group and reward mode are added where the record is stored. Values may be non-finite.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lockstep.revision import code_identity
from worker.train.plan import BlockPlan, RunPlan

Event = dict[str, Any]


def run_started(plan: BlockPlan, run: RunPlan, device: torch.device, position: int) -> Event:
    """Return what was started: hashes, diff, code, precision as resolved, flags, place in the order of issue.

    ``git_sha`` is None with a ``git_sha_reason`` where the code's commit cannot be known.
    """
    config, code = run.config, code_identity()
    return _event(
        "run_started",
        spec_hash=plan.spec_hash,
        config_hash=_digest(config),
        attempt=plan.attempt,
        policy=run.policy,
        diff=[dict(item) for item in run.diff],
        git_sha=code.git_sha,
        git_sha_reason=code.reason,
        version=code.version,
        python=platform.python_version(),
        device=str(device),
        device_model=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        torch=torch.__version__,
        precision=dict(config["precision"]),
        deterministic=bool(config["lockstep"]["deterministic"]),
        batch_position=position,
        num_runs=len(plan.runs),
    )


def update_completed(algorithm: str, metrics: Mapping[str, float]) -> Event:
    """Return the metrics of an update and why steps were skipped."""
    own = {name.removeprefix(f"{algorithm}/"): value for name, value in metrics.items()}
    non_finite = own["steps_non_finite"]
    reasons = {"kl_stop": own["steps_skipped"] - non_finite, "non_finite": non_finite}
    return _event(f"{algorithm}_update_completed", metrics=own, skipped=reasons)


def evaluation_events(metrics: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Return the events of an evaluation, and of the cross-evaluation where there was one."""
    if not metrics:
        return []
    scored = {name: value for name, value in metrics.items() if name.startswith("eval/")}
    keys = [row.get("host_seed_key") for row in rows]
    found = [_event("evaluation_completed", metrics=scored, episodes=len(rows), seeds_hash=_digest(keys))]
    crossed = {name.removeprefix("xeval/return_"): v for name, v in metrics.items() if name.startswith("xeval/")}
    if crossed:
        found.append(_event("cross_evaluation_completed", matrix_row=crossed))
    return found


def _event(kind: str, **payload: Any) -> Event:
    return {"type": kind, "env_id": None, "severity": "info", **payload}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
