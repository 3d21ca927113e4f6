"""The environments of one run: networks, slots, measurements, and what ops and ticks do to them.

Holds no reward, no policy and no data; ``env.MorphEnvs`` drives it in the order of environment.md 6.2.
Axes: E environments, S slots in action order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.spec.tasks import BLUEPRINT_NAMES, HostShape, SlotSpec, action_order
from worker.envs.morph.engine.ablation import EXACT_PLAYERS, Orders, antithetic_orders
from worker.envs.morph.engine.tracker import Tracker
from worker.envs.morph.engine.validate import Validator, ValPlan
from worker.envs.morph.episode.episode import Account, number_or_none
from worker.envs.morph.episode.shared_data import Networks
from worker.envs.morph.life import actions, gates
from worker.envs.morph.life.actions import ALPHA_TARGETS, STYLES, Action, Legality, Rules
from worker.envs.morph.life.alpha import Curve, Ramp
from worker.envs.morph.life.governor import Governor
from worker.envs.morph.life.lifecycle import SlotTable, members
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.network.network import SlotPlan, StepPlan
from worker.envs.morph.rewards.arrays import Moment
from worker.envs.morph.task.config import EnvConfig
from worker.envs.morph.task.streams import Streams

#: Gate that a change of stage has passed.
_PASSED = {
    (Stage.GERMINATED, Stage.TRAINING): "g1",
    (Stage.TRAINING, Stage.BLENDING): "g2",
    (Stage.BLENDING, Stage.HOLDING): "g3",
}
_BLENDED = frozenset(int(stage) for stage in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED))
# an attribute of an enum is looked up in Python, which is slow
_TRAINING, _BLENDING, _FOSSILIZED, _DOWN = Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED, Ramp.DOWN
#: Stages that a gate lets pass.
_GATED = members(Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING)
#: Rows that one validation pass may hold at a time: images, or windows of a language model.
_MAX_ROWS = {"cnn": 16_384, "lm": 256}


@dataclass
class Snapshot:
    """Weights and buffers of the host and of every fossil, by slot."""

    host: tuple[Tensor, Tensor]
    fossils: dict[int, tuple[Tensor, Tensor]]


class World:
    """All environments of one run.

    Args:
        config: settings.
        num_envs: E.
        streams: keyed generators.
        device: where the networks live.
        networks: where they are taken from.
        shape: host shape when it differs from the task's (static_wide); such a host has no slots.
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        streams: Streams,
        device: torch.device,
        networks: Networks,
        shape: HostShape | None = None,
    ) -> None:
        self.config, self.num_envs, self.streams, self.device = config, num_envs, streams, device
        enabled = [slot for slot in config.task.host.slots() if slot.id in config.slots]
        self.slots: tuple[SlotSpec, ...] = tuple(action_order(enabled))
        self.networks = [networks.lend(config, self.slots, device, shape) for _ in range(num_envs)]
        rows = _MAX_ROWS[self.networks[0].topology]
        self.validators = [Validator(network, rows) for network in self.networks]
        self.rules = Rules.build(config, self.slots, can_grow=shape is None)
        log_classes = math.log(config.task.host.num_classes)
        self.governors = [Governor(config.governor, log_classes) for _ in range(num_envs)]
        self.events: list[dict[str, Any]] = []
        self._start(0)

    def _start(self, episode: int) -> None:
        num_envs, num_slots = self.num_envs, len(self.slots)
        self.episode = episode
        self.table = SlotTable.empty(num_envs, num_slots)
        self.tracker = Tracker.unmeasured(num_envs, num_slots)
        self.accounts = [Account() for _ in range(num_envs)]
        self.running: NDArray[np.bool_] = np.ones(num_envs, dtype=bool)
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.last_op = np.full(num_envs, -1, dtype=np.int64)
        self.as_chosen = np.ones(num_envs, dtype=bool)
        self.snapshots: list[Snapshot] = []

    @property
    def host_params(self) -> int:
        """Number of host parameters."""
        return self.networks[0].host_params

    def reset(self, episode: int, static_set: Mapping[str, str] | None) -> None:
        """Begin an episode in every environment; ``static_set`` {slot: blueprint} is grown at alpha 1."""
        for network in self.networks:
            network.clear()
        self._start(episode)
        for env, network in enumerate(self.networks):
            network.reset(self.streams.generator("host_init", env, episode))
            self.governors[env].reset()
            for slot_id, name in (static_set or {}).items():
                self._install(env, self._slot_index(slot_id), blueprint_id(name))
            self.snapshots.append(self._snapshot(env))
            self.accounts[env].rows_before = self.validators[env].forward_rows

    def legality(self) -> Legality:
        """Return what is legal now."""
        verdicts = gates.evaluate(self.table, self.tracker, self.config)
        return actions.legality(self.table, verdicts, self.rules)

    def execute(self, env: int, action: Action) -> None:
        """Apply a legal op; the caller has checked it and preflight has passed."""
        where = (env, action.slot)
        if action.op is Op.GERMINATE:
            self._germinate(env, action)
        elif action.op is Op.ADVANCE:
            self._advance(env, action.slot, "policy")
        elif action.op is Op.SET_ALPHA_TARGET:
            steps = self.config.pace.speeds[action.alpha_speed]
            if self.table.stage[where] == Stage.HOLDING:
                self._move(env, action.slot, Stage.BLENDING, "policy")
            target = ALPHA_TARGETS[action.alpha_target]
            self.table.alpha.retarget(where, target, steps, Curve(action.alpha_curve))
        elif action.op is Op.PRUNE:
            self._prune_or_ramp(env, action)
        elif action.op is Op.FOSSILIZE:
            self._fossilize(env, action.slot)

    def tick(self) -> None:
        """Advance every slot once: embargo, automatic advance, ramps; prune what has ramped to 0."""
        self.table.tick_empty(self.running, self.config.pace.embargo)
        if self.config.auto_advance:
            self._auto_advance()
        for env, slot in self.table.tick_alpha(self.running):
            self.remove(env, slot, "ramp")

    def step_plan(self, env: int) -> StepPlan:
        """Return what each slot does in training, and write alpha and freezing into the grafts."""
        plan: list[SlotPlan] = []
        network, alpha = self.networks[env], self.table.alpha
        for slot in self._occupied(env):
            stage = int(self.table.stage[env, slot])
            falling = bool(alpha.mode[env, slot] == _DOWN)
            network.set_blend(slot, float(alpha.alpha[env, slot]), active=not falling)
            if stage == _TRAINING:
                plan.append(SlotPlan(slot, self.config.train_signal, detach=True))
            elif stage in _BLENDED:
                isolated = stage == _BLENDING and network.topology == "cnn" and not falling
                plan.append(SlotPlan(slot, "blend", isolated))
        return tuple(plan)

    def val_plan(self, env: int, *, last: bool) -> ValPlan:
        """Return the configurations to validate; ``last`` is the final step of the episode."""
        stage, alpha = self.table.stage[env].tolist(), self.table.alpha.alpha[env].tolist()
        occupied = self._occupied(env)
        blended = [s for s in occupied if stage[s] in _BLENDED and alpha[s] > 0.0]
        ablates = self.config.ablate_fossils == "always" or last
        players = [s for s in blended if ablates or stage[s] != _FOSSILIZED]
        fossils = sum(1 << i for i, s in enumerate(players) if stage[s] == _FOSSILIZED)
        shapley = bool(players) and (last or self.config.shapley == "always")
        orders: Orders = ()
        if shapley and len(players) > EXACT_PLAYERS:
            epoch = int(self.steps[env])
            generator = self.streams.generator("shapley", env, self.episode, epoch=epoch)
            orders = antithetic_orders(len(players), generator)
        return _planned(
            tuple(players),
            fossils,
            tuple(s for s in occupied if stage[s] == _TRAINING),
            shapley,
            orders,
            tuple(s for s in blended if s not in players),
        )

    def remove(self, env: int, slot: int, cause: str) -> None:
        """Prune a graft: slot state, measurements, module and optimiser state leave together."""
        if self.table.stage[env, slot] == Stage.TRAINING:
            self.accounts[env].dwell_training.append(int(self.table.epochs_in_stage[env, slot]))
        self._event(env, "graft_pruned", slot, reason=cause, **{"from": self._stage_name(env, slot)})
        self.table.prune(env, slot)
        self.tracker.forget(env, slot)
        self.networks[env].remove(slot)
        self.accounts[env].pruned[cause] += 1

    def take_snapshot(self, env: int) -> None:
        """Keep weights and buffers of host and fossils for a rollback."""
        self.snapshots[env] = self._snapshot(env)

    def roll_back(self, env: int) -> None:
        """Restore the snapshot bit-exactly, remove live grafts, clear optimisers and loss window."""
        snapshot, network = self.snapshots[env], self.networks[env]
        network.store.restore(snapshot.host)
        for slot in self._occupied(env):
            if slot in snapshot.fossils:
                network.cell(slot).store.restore(snapshot.fossils[slot])
                continue
            if self.table.stage[env, slot] == Stage.FOSSILIZED:
                self.table.annul_fossil(env, slot)
            self.remove(env, slot, "governor")
        self.governors[env].reset()

    def moment(self) -> Moment:
        """Return stages and measurements of this instant (copies)."""
        tracker = self.tracker
        stage, epochs_in_stage, age, germinated_at, params = self.table.counts[:5].copy()
        return Moment(
            stage=stage,
            epochs_in_stage=epochs_in_stage,
            age=age,
            alpha=self.table.alpha.alpha.astype(np.float32),
            params=params.astype(np.float32),
            germinated_at=germinated_at,
            contribution=np.where(tracker.fresh, tracker.accuracy_gain, np.nan).astype(np.float32),
            cf=tracker.cf.astype(np.float32),
            interactions=tracker.interaction.astype(np.float32),
            accuracy=tracker.accuracy.astype(np.float32),
            committed_accuracy=tracker.committed_accuracy.astype(np.float32),
            loss=tracker.loss.astype(np.float32),
        )

    def event(self, env: int, kind: str, **payload: Any) -> None:
        """Record an event of an environment at its present step."""
        number = self.streams.number(env)
        self.events.append({"type": kind, "env_id": number, "step": int(self.steps[env]), **payload})

    def _occupied(self, env: int) -> list[int]:
        network = self.networks[env]
        return network.in_execution_order([s for s, cell in enumerate(network.live) if cell is not None])

    def _slot_index(self, slot_id: str) -> int:
        for index, slot in enumerate(self.slots):
            if slot.id == slot_id:
                return index
        raise ValueError(f"static_set slot {slot_id!r} is not enabled; use {[s.id for s in self.slots]}")

    def _grow(self, env: int, slot: int, blueprint: int, operator: Operator) -> None:
        """Create the graft and its slot state; the key names slot, blueprint and ordinal."""
        table, where = self.table, (env, slot)
        ordinal = int(table.germinations[where])
        generator = self.streams.generator(
            "graft_init", env, self.episode, slot=self.slots[slot].id, blueprint=blueprint, ordinal=ordinal
        )
        table.params[where] = self.networks[env].germinate(slot, blueprint, operator, generator)
        table.move(env, slot, Stage.GERMINATED)
        table.blueprint[where], table.operator[where] = blueprint, operator
        table.germinated_at[where] = self.steps[env]
        table.germinations[where] += 1
        table.age[where] = 0

    def _germinate(self, env: int, action: Action) -> None:
        where = (env, action.slot)
        _, operator, curve = STYLES[action.style]
        self._grow(env, action.slot, action.blueprint, operator)
        self.table.tempo[where] = self.config.pace.tempos[action.tempo]
        self.table.birth_target[where] = ALPHA_TARGETS[action.alpha_target]
        self.table.birth_curve[where] = curve
        self._event(env, "graft_germinated", action.slot, gate="g0", style=STYLES[action.style][0])

    def _install(self, env: int, slot: int, blueprint: int) -> None:
        """Grow a static graft: fossilised at alpha 1 from the first epoch, trained jointly."""
        self._grow(env, slot, blueprint, Operator.ADD)
        for stage in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED):
            self.table.move(env, slot, stage)
        self.table.alpha.snap(env, slot, 1.0)
        self.networks[env].set_blend(slot, 1.0, active=True)

    def _advance(self, env: int, slot: int, reason: str) -> None:
        where = (env, slot)
        stage = Stage(int(self.table.stage[where]))
        following = {
            Stage.GERMINATED: Stage.TRAINING,
            Stage.TRAINING: Stage.BLENDING,
            Stage.BLENDING: Stage.HOLDING,
        }[stage]
        if stage is Stage.TRAINING:
            self.accounts[env].dwell_training.append(int(self.table.epochs_in_stage[where]))
        self._move(env, slot, following, reason)
        if following is Stage.BLENDING:
            curve = Curve(int(self.table.birth_curve[where]))
            target = float(self.table.birth_target[where])
            self.table.alpha.retarget(where, target, int(self.table.tempo[where]), curve)

    def _auto_advance(self) -> None:
        """Advance where a covered gate passes, at the step at which ADVANCE would first be legal."""
        if not np.count_nonzero(self.table.within(_GATED)):
            return
        verdicts = gates.evaluate(self.table, self.tracker, self.config)
        covered = np.zeros(self.table.stage.shape, dtype=bool)
        for name in self.config.auto_advance:
            covered |= getattr(verdicts, name)
        covered &= self.running[:, None] & (self.table.epochs_in_stage > 0)
        if not np.count_nonzero(covered):
            return
        for env, slot in np.argwhere(covered):
            self._advance(int(env), int(slot), "auto")

    def _prune_or_ramp(self, env: int, action: Action) -> None:
        where = (env, action.slot)
        steps = self.config.pace.speeds[action.alpha_speed]
        early = self.table.stage[where] in (Stage.GERMINATED, Stage.TRAINING)
        if early or steps == 0 or self.table.alpha.alpha[where] == 0.0:
            self.remove(env, action.slot, "policy")
            return
        if self.table.stage[where] == Stage.HOLDING:
            self._move(env, action.slot, Stage.BLENDING, "policy")
        self.table.alpha.retarget(where, 0.0, steps, Curve(action.alpha_curve))

    def _fossilize(self, env: int, slot: int) -> None:
        self.accounts[env].time_to_fossil.append(int(self.table.age[env, slot]))
        self.table.move(env, slot, Stage.FOSSILIZED)
        self._event(env, "graft_fossilized", slot, reason="policy", gate="g5")

    def _move(self, env: int, slot: int, to: Stage, reason: str) -> None:
        before = Stage(int(self.table.stage[env, slot]))
        self.table.move(env, slot, to)
        change = {"from": before.name, "to": to.name, "gate": _PASSED.get((before, to))}
        self._event(env, "graft_stage_changed", slot, reason=reason, **change)

    def _stage_name(self, env: int, slot: int) -> str:
        return Stage(int(self.table.stage[env, slot])).name

    def _event(self, env: int, kind: str, slot: int, **payload: Any) -> None:
        where = (env, slot)
        self.event(
            env,
            kind,
            slot=self.slots[slot].id,
            blueprint=BLUEPRINT_NAMES[int(self.table.blueprint[where])],
            params=int(self.table.params[where]),
            alpha=float(self.table.alpha.alpha[where]),
            c=number_or_none(self.tracker.accuracy_gain[where]),
            cf=number_or_none(self.tracker.cf[env]),
            **payload,
        )

    def _snapshot(self, env: int) -> Snapshot:
        network, fossils = self.networks[env], self.table.stage[env] == Stage.FOSSILIZED
        kept = {int(s): network.cell(int(s)).store.snapshot() for s in np.flatnonzero(fossils)}
        return Snapshot(network.store.snapshot(), kept)


@lru_cache(maxsize=1024)
def _planned(
    players: tuple[int, ...],
    fossils: int,
    prospective: tuple[int, ...],
    shapley: bool,
    orders: Orders,
    fixed: tuple[int, ...],
) -> ValPlan:
    """Return a plan; equal ones are one object, so that what follows from a plan is worked out once."""
    return ValPlan(players, fossils, prospective, shapley, orders, fixed)
