"""The episode row: every metric of environment.md 13 and training.md 7.2 under its name there."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.spec.tasks import BLUEPRINT_NAMES
from worker.envs.morph.engine import ablation
from worker.envs.morph.engine.validate import Measured
from worker.envs.morph.episode.episode import SCHEMA, mean_or_none, number_or_none
from worker.envs.morph.episode.runs import RunState
from worker.envs.morph.episode.world import World
from worker.envs.morph.life.stages import Stage
from worker.envs.morph.task.streams import Phase


def episode_row(run: RunState, env: int, phase: Phase, wall_seconds: float, test: Measured | None) -> dict[str, Any]:
    """Return the row of a finished episode; a value that was not measured is None.

    Args:
        run: the run.
        env: environment (in evaluation: the evaluation episode).
        phase: train or eval.
        wall_seconds: from the start of the round.
        test: the final network on the test split, in evaluation.
    """
    world = run.world
    account = world.accounts[env]
    final = account.final
    if final is None:
        raise RuntimeError(f"env {env} has finished no step")
    number = world.streams.number(env)
    row: dict[str, Any] = {
        "schema": SCHEMA,
        "phase": phase,
        "split": "val" if test is None else "test",
        "env_id": number,
        "episode_idx": number if phase == "eval" else world.episode,
        "host_seed_key": world.streams.key("host_init", env, world.episode),
        **_scores(world, env, final, test),
        "outcome": "rolled_back" if account.rollback else "horizon",
        "val_rows": world.validators[env].forward_rows - account.rows_before,
        "wall_seconds": wall_seconds,
        **_topology(world, env),
        **account.counts(),
        **_fossils(world, final),
    }
    penalty = float(run.reward_account.penalties[env]) if account.rollback else None
    if world.device.type != "cpu":
        row["device_seconds"] = None
    row |= account.returns(run.reward_account.earned(env), penalty)
    if run.xeval:
        row["xeval"] = {name: scored.total(env) for name, scored in run.xeval.items()}
    return row


def _scores(world: World, env: int, final: Measured, test: Measured | None) -> dict[str, Any]:
    """Return accuracies and losses, pp and nats."""
    account, tracker = world.accounts[env], world.tracker
    return {
        "final_accuracy": number_or_none(final.accuracy),
        "final_loss": number_or_none(final.loss),
        "committed_accuracy": number_or_none(final.committed_accuracy),
        "best_accuracy": number_or_none(tracker.best_accuracy[env]),
        "initial_accuracy": number_or_none(tracker.initial_accuracy[env]),
        "accuracy_auc": mean_or_none(account.accuracies),
        "test_accuracy": None if test is None else number_or_none(test.accuracy),
        "test_loss": None if test is None else number_or_none(test.loss),
    }


def _topology(world: World, env: int) -> dict[str, Any]:
    """Return parameter counts and the final set; only grafts with alpha above 0 count."""
    table = world.table
    counts = table.alpha.alpha[env] > 0.0
    grafts = int(table.params[env][counts].sum())
    total = world.host_params + grafts
    stages, gains = table.stage[env], world.tracker.accuracy_gain[env]
    return {
        "host_params": world.host_params,
        "graft_params": grafts,
        "total_params": total,
        "param_ratio": total / world.host_params,
        "n_contributing": int((world.tracker.fresh[env] & (gains >= 1.0)).sum()),
        "grafts_live": int((table.blueprint[env] >= 0).sum() - (stages == Stage.FOSSILIZED).sum()),
        "grafts_fossilized": int((stages == Stage.FOSSILIZED).sum()),
        "topology": {
            world.slots[slot].id: BLUEPRINT_NAMES[table.blueprint[env, slot]] for slot in np.flatnonzero(counts)
        },
    }


def _fossils(world: World, final: Measured) -> dict[str, Any]:
    """Return what the fossils are worth: Shapley values summed, and how many surely help."""
    plan = final.plan
    fossils = [i for i in range(len(plan.players)) if plan.fossils >> i & 1]
    loss, error = final.contrast[0], final.contrast[1]
    surely = sum(bool(loss[i] - 2.0 * error[i] > 0.0) for i in fossils)
    total: float | None = None
    spread: float | None = None
    if fossils and plan.shapley:
        total, spread = fossil_value(final, fossils)
    return {
        "contribution_fossils": total,
        "contribution_fossils_se": spread,
        "positive_fossils": surely,
        "shapley": None if not plan.shapley else _shapley(world, final),
    }


def fossil_value(final: Measured, fossils: list[int]) -> tuple[float, float]:
    """Return the sum of the fossils' Shapley values and its standard error (root of summed squares)."""
    values, errors = shapley_values(final)
    return float(values[fossils].sum()), float(np.sqrt((errors[fossils] ** 2).sum()))


def shapley_values(final: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Return Shapley values and standard errors of the players, nats."""
    wanted = final.plan.contrasts
    values, errors = final.contrast[0, wanted.shapley], final.contrast[1, wanted.shapley]
    if wanted.sampled:
        return ablation.sampled_shapley(values, wanted.num_players)
    return values, errors


def _shapley(world: World, final: Measured) -> dict[str, float]:
    values, _ = shapley_values(final)
    return {world.slots[slot].id: float(value) for slot, value in zip(final.plan.players, values, strict=True)}
