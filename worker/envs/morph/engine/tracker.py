"""What has been measured of every environment, as arrays on the host.

Unmeasured is NaN, never 0. ``fresh`` says whether a contribution comes from the latest validation.
Axes: E environments, S slots in action order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.envs.morph.engine.validate import Measured
from worker.envs.morph.network.network import gradient_health

FloatArray = NDArray[np.float64]
HISTORY = 5
_PER_ENV = ("accuracy_se", "committed_loss", "committed_accuracy", "cf", "initial_loss", "initial_accuracy")
_SIGNED = ("accuracy_gain", "loss_gain", "velocity", "prospective", "interaction_sum")
_GRADIENTS = ("health", "vanishing", "exploding", "previous_health")
_PER_SLOT = (*_SIGNED, *_GRADIENTS, "loss_gain_se", "measured_at", "prospective_se", "grad_norm")


@dataclass
class Tracker:
    """Measurements of a run.

    Attributes:
        loss, accuracy, accuracy_se: [E] main, nats and pp.
        train_loss: [E] nats, mean of the last epoch.
        committed_loss, committed_accuracy: [E] only fossils on.
        cf: [E] pp, all on minus all off; NaN without players.
        initial_loss, initial_accuracy, best_accuracy: [E].
        losses, accuracies: [E, 5] latest values, newest last.
        accuracy_gain: [E, S] pp, latest measured contribution; loss_gain, loss_gain_se nats.
        measured_at: [E, S] step of that measurement, NaN if never.
        fresh: [E, S] whether measured in the latest validation.
        velocity: [E, S] pp per step, smoothed.
        prospective, prospective_se: [E, S] nats, of TRAINING grafts in the latest validation.
        interaction: [E, S, S] pp; interaction_sum: [E, S] nats, over the other players.
        grad_norm, vanishing, exploding, health, previous_health: [E, S] of the last epoch.

    What is read together lies together; the arrays above are its rows:
        nats: [7, E] loss, losses, train_loss.
        percents: [7, E] accuracy, accuracies, best_accuracy.
        signed: [5, E, S] accuracy_gain, loss_gain, velocity, prospective, interaction_sum.
        gradients: [4, E, S] health, vanishing, exploding, previous_health.
        per_slot: [13, E, S] all of [E, S] but ``fresh``.
    """

    loss: FloatArray
    accuracy: FloatArray
    accuracy_se: FloatArray
    train_loss: FloatArray
    committed_loss: FloatArray
    committed_accuracy: FloatArray
    cf: FloatArray
    initial_loss: FloatArray
    initial_accuracy: FloatArray
    best_accuracy: FloatArray
    losses: FloatArray
    accuracies: FloatArray
    accuracy_gain: FloatArray
    loss_gain: FloatArray
    loss_gain_se: FloatArray
    measured_at: FloatArray
    velocity: FloatArray
    prospective: FloatArray
    prospective_se: FloatArray
    interaction_sum: FloatArray
    grad_norm: FloatArray
    vanishing: FloatArray
    exploding: FloatArray
    health: FloatArray
    previous_health: FloatArray
    interaction: FloatArray
    fresh: NDArray[np.bool_]
    nats: FloatArray
    percents: FloatArray
    signed: FloatArray
    gradients: FloatArray
    per_slot: FloatArray

    @classmethod
    def unmeasured(cls, num_envs: int, num_slots: int) -> Tracker:
        """Return a tracker that has seen nothing."""
        nats, percents = np.full((2, HISTORY + 2, num_envs), np.nan)
        per_env = np.full((len(_PER_ENV), num_envs), np.nan)
        per_slot = np.full((len(_PER_SLOT), num_envs, num_slots), np.nan)
        return cls(
            **dict(zip(_PER_ENV, per_env, strict=True)),
            **dict(zip(_PER_SLOT, per_slot, strict=True)),
            loss=nats[0],
            losses=nats[1:-1].T,
            train_loss=nats[-1],
            accuracy=percents[0],
            accuracies=percents[1:-1].T,
            best_accuracy=percents[-1],
            interaction=np.full((num_envs, num_slots, num_slots), np.nan),
            fresh=np.zeros((num_envs, num_slots), dtype=bool),
            nats=nats,
            percents=percents,
            signed=per_slot[: len(_SIGNED)],
            gradients=per_slot[len(_SIGNED) :][: len(_GRADIENTS)],
            per_slot=per_slot,
        )

    def forget(self, env: int, slot: int) -> None:
        """Drop everything measured of a graft."""
        self.per_slot[:, env, slot] = np.nan
        self.fresh[env, slot] = False
        self.interaction[env, slot] = np.nan
        self.interaction[env, :, slot] = np.nan

    def record_main(self, env: int, measured: Measured) -> None:
        """Take over the figures of the whole network."""
        self.loss[env], self.accuracy[env] = measured.loss, measured.accuracy
        self.accuracy_se[env] = measured.accuracy_se
        self.committed_loss[env] = measured.committed_loss
        self.committed_accuracy[env] = measured.committed_accuracy
        self.best_accuracy[env] = np.fmax(self.best_accuracy[env], measured.accuracy)
        for history, value in ((self.losses, measured.loss), (self.accuracies, measured.accuracy)):
            history[env, :-1] = history[env, 1:]
            history[env, -1] = value

    def record_start(self, env: int, measured: Measured) -> None:
        """Take over the validation of the untrained network."""
        self.record_main(env, measured)
        self.initial_loss[env], self.initial_accuracy[env] = measured.loss, measured.accuracy

    def record_grafts(self, env: int, measured: Measured, step: int, keep: float) -> None:
        """Take over contributions, interactions and prospects.

        Args:
            env: environment.
            measured: the validation after step ``step``.
            step: index of the step.
            keep: weight of the old velocity.
        """
        plan, wanted = measured.plan, measured.plan.contrasts
        loss, loss_se, accuracy, _ = measured.contrast.tolist()
        self.fresh[env] = False
        self.cf[env] = accuracy[wanted.total] if plan.players else np.nan
        for i, slot in enumerate(plan.players):
            self._record_gain(env, slot, accuracy[i], keep)
            self.loss_gain[env, slot], self.loss_gain_se[env, slot] = loss[i], loss_se[i]
            self.measured_at[env, slot], self.fresh[env, slot] = step, True
        self._record_interactions(env, measured)
        self.prospective[env] = self.prospective_se[env] = np.nan
        for slot, gain in measured.prospective.items():
            self.prospective[env, slot], self.prospective_se[env, slot] = gain[0], gain[1]

    def record_training(self, env: int, packed: FloatArray) -> int:
        """Take over an epoch's figures [2 + 3 S]; return its batches with a non-finite gradient."""
        self.train_loss[env] = packed[0]
        for slot, (norm, vanishing, exploding) in enumerate(packed[2:].reshape(-1, 3).tolist()):
            if math.isnan(vanishing):
                continue
            self.previous_health[env, slot] = self.health[env, slot]
            self.grad_norm[env, slot] = norm
            self.vanishing[env, slot], self.exploding[env, slot] = vanishing, exploding
            self.health[env, slot] = gradient_health(norm, vanishing, exploding)
        return int(packed[1])

    def _record_gain(self, env: int, slot: int, gain: float, keep: float) -> None:
        before = float(self.accuracy_gain[env, slot])
        if not math.isnan(before):
            old = float(self.velocity[env, slot])
            self.velocity[env, slot] = keep * (0.0 if math.isnan(old) else old) + (1.0 - keep) * (gain - before)
        self.accuracy_gain[env, slot] = gain

    def _record_interactions(self, env: int, measured: Measured) -> None:
        plan, wanted = measured.plan, measured.plan.contrasts
        self.interaction[env] = np.nan
        self.interaction_sum[env] = np.nan
        for row, (i, j) in enumerate(wanted.pairs, start=wanted.interaction.start):
            a, b = plan.players[i], plan.players[j]
            self.interaction[env, a, b] = self.interaction[env, b, a] = measured.contrast[2, row]
            for slot in (a, b):
                old = self.interaction_sum[env, slot]
                self.interaction_sum[env, slot] = measured.contrast[0, row] + (0.0 if np.isnan(old) else old)
