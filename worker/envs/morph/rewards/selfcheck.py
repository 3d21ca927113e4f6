"""What a worker checks of every registered mode at its start, and what it announces (training.md 2.14).

Each mode is run on keyed random transitions: shapes, finiteness, components that sum to the reward,
equal bits for equal input, unmodified input, and invariance under a permutation of the slots (P11).
Axes: E environment, S slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.keys import generator
from worker.envs.faults import EnvironmentFault
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards.account import paid_by
from worker.envs.morph.rewards.config import RewardConfig
from worker.envs.morph.rewards.context import RewardContext, RewardResult, SlotState
from worker.envs.morph.rewards.modes import MODES
from worker.envs.morph.rewards.registry import BoundReward, installed_modes, make_reward, registered_modes
from worker.envs.paid import RewardDefect, payer

_E, _S, _STEPS, _HORIZON = 200, 3, 4, 12
_TOLERANCE = 1e-5


def describe_modes() -> dict[str, dict[str, Any]]:
    """Return {built-in mode: version, environment kinds and JSON Schema of its flat, scalar constants}."""
    properties: dict[str, dict[str, Any]] = {}
    for name, default in RewardConfig.defaults().items():
        if isinstance(default, bool):
            properties[name] = {"type": "boolean", "default": default}
        elif isinstance(default, float):
            bound = {"minimum": 0} if default >= 0 else {}
            properties[name] = {"type": "number", "default": default, **bound}
        else:
            properties[name] = {"type": ["number", "null"], "default": None}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {
        name: {"version": version, "env_kinds": ["morphogenesis"], "schema": schema}
        for name, version in registered_modes().items()
        if name in MODES
    }


def check_modes(gamma: float = 0.995, task: str = "digits_tiny") -> list[str]:
    """Check every mode of this environment and return their names; a defect raises ``RewardDefect``."""
    names = sorted([*MODES, *installed_modes()])
    for name in names:
        check_mode(make_reward(name, {}, gamma=gamma, task=task))
    return names


@torch.inference_mode()
def check_mode(function: BoundReward) -> None:
    """Check one mode on 200 keyed random trajectories, without gradients, as it is paid; raises ``RewardDefect``."""
    order = [2, 0, 1]
    ledgers: Mapping[str, Tensor] = {}
    turned_ledgers: Mapping[str, Tensor] = {}
    for ctx in _trajectory():
        ctx = replace(ctx, ledgers=ledgers)
        before = _bits(ctx)
        result, again = _paid(function, ctx), _paid(function, ctx)
        turned = _paid(function, replace(_permuted(ctx, order), ledgers=turned_ledgers))
        _require(function, _bits(ctx) == before, "changes its input")
        _require(function, torch.equal(result.reward, again.reward), "gives other bits for the same input")
        gap = float((_sum(result) - result.reward).abs().max())
        _require(function, gap <= _TOLERANCE, f"has components that miss the reward by {gap:.2g}")
        gap = float((turned.reward - result.reward).abs().max())
        _require(function, gap <= 1e-4, f"depends on the order of slots ({gap:.2g})")
        ledgers, turned_ledgers = result.ledgers, turned.ledgers


def _paid(function: BoundReward, ctx: RewardContext) -> RewardResult:
    """Return what a mode pays, under the rules of training."""
    everybody = np.ones(_E, dtype=bool)
    try:
        rows, names, ledgers = paid_by(function, ctx, payer(function.name, ""), None, everybody)
    except EnvironmentFault as error:
        raise RewardDefect(str(error)) from error
    return RewardResult(rows[0], dict(zip(names, rows[1:], strict=True)), ledgers)


def _require(function: BoundReward, holds: bool, defect: str) -> None:
    if not holds:
        raise RewardDefect(f"reward mode {function.name!r} {defect}; correct the mode or remove it")


def _sum(result: RewardResult) -> Tensor:
    return torch.stack(list(result.components.values())).sum(0)


def _bits(ctx: RewardContext) -> bytes:
    parts = [x for state in (ctx.pre, ctx.post) for x in vars(state).values()]
    given = [getattr(ctx, item.name) for item in fields(ctx)]
    parts += [x for x in given if isinstance(x, Tensor)]
    return b"".join(x.numpy().tobytes() for x in [*parts, *ctx.ledgers.values()])


def _trajectory() -> list[RewardContext]:
    rng = generator(0, "control_policy", use="reward self check")
    states = [_state(rng) for _ in range(_STEPS + 1)]
    return [_transition(rng, t, states[t], states[t + 1]) for t in range(_STEPS)]


def _state(rng: np.random.Generator) -> SlotState:
    def floats(low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))

    stage = torch.from_numpy(rng.choice([int(s) for s in Stage], (_E, _S)))
    on = torch.isin(stage, torch.tensor([int(Stage.BLENDING), int(Stage.HOLDING), int(Stage.FOSSILIZED)]))
    pairs = floats(-3, 3, _E, _S, _S)
    pairs = torch.where(on.unsqueeze(1) & on.unsqueeze(2), pairs + pairs.transpose(1, 2), torch.nan)
    pairs = torch.where(torch.eye(_S, dtype=torch.bool), torch.nan, pairs)
    return SlotState(
        stage=stage,
        epochs_in_stage=torch.from_numpy(rng.integers(0, 9, (_E, _S))),
        age=torch.from_numpy(rng.integers(0, 20, (_E, _S))),
        alpha=torch.where(on, floats(0, 1, _E, _S), 0.0),
        params=torch.where(stage == Stage.DORMANT, 0.0, floats(20, 2000, _E, _S)),
        germinated_at=torch.from_numpy(rng.integers(-1, 12, (_E, _S))),
        contribution=torch.where(on, floats(-6, 9, _E, _S), torch.nan),
        cf=torch.where(on.any(1), floats(-6, 12, _E), torch.nan),
        interactions=pairs,
        accuracy=floats(0, 100, _E),
        committed_accuracy=floats(0, 100, _E),
        loss=floats(0, 8, _E),
    )


def _transition(rng: np.random.Generator, t: int, pre: SlotState, post: SlotState) -> RewardContext:
    op = torch.from_numpy(rng.integers(0, len(Op), _E))
    last = torch.full((_E,), t == _STEPS - 1)
    return RewardContext(
        pre=pre,
        post=post,
        op=op,
        target_slot=torch.where(op == Op.WAIT, -1, torch.from_numpy(rng.integers(0, _S, _E))),
        executed_op=op,
        rolled_back=last & torch.from_numpy(rng.random(_E) < 0.2),
        terminated=last,
        is_last=last,
        t=torch.full((_E,), t),
        horizon=_HORIZON,
        host_params=torch.full((_E,), 152.0),
        initial_accuracy=torch.full((_E,), 10.0),
        initial_loss=torch.full((_E,), 2.3),
        ledgers={},
    )


def _permuted(ctx: RewardContext, order: list[int]) -> RewardContext:
    def state(s: SlotState) -> SlotState:
        turned = {name: x[:, order] for name, x in vars(s).items() if x.ndim == 2}
        return replace(s, interactions=s.interactions[:, order][:, :, order], **turned)

    place = torch.tensor([order.index(i) for i in range(len(order))] + [-1])
    return replace(ctx, pre=state(ctx.pre), post=state(ctx.post), target_slot=place[ctx.target_slot])
