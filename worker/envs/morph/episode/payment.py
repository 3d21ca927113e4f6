"""The end of a step: what the transition pays, which corrections it makes, what looks like hacking.

Reads the turn after training and governor; follows environment.md 6.2 step 9 and section 8. Axes: E.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.envs.base import Correction
from worker.envs.morph.episode.runs import Turn
from worker.envs.morph.rewards.account import RewardAccount
from worker.envs.morph.rewards.arrays import at_least, measured, total
from worker.envs.morph.rewards.context import RewardContext, SlotState
from worker.envs.paid import payer

_ATTRIBUTION_RATIO, _RANSOM_GAIN, _RANSOM_TOTAL = 5.0, 0.1, -0.2


def context(turn: Turn, step: int, horizon: int, *, truncates: bool) -> RewardContext:
    """Return the transition (s_t, a_t, s_{t+1}) of all environments of a run.

    Args:
        turn: the step as executed.
        step: its index t.
        horizon: T.
        truncates: whether reaching T is a truncation.
    """
    world, rolled = turn.run.world, turn.panicked()
    num_envs = world.num_envs
    is_last = step + 1 == horizon
    chosen = turn.chosen
    return RewardContext(
        pre=turn.run.state,
        post=world.slot_state(),
        op=_ints([0 if choice is None else choice.op for choice in chosen]),
        target_slot=_ints([-1 if choice is None else choice.slot for choice in chosen]),
        executed_op=_ints(turn.executed),
        rolled_back=_flags(rolled),
        terminated=_flags(turn.ran & (rolled | (is_last and not truncates))),
        is_last=torch.from_numpy(np.full(num_envs, is_last)),
        t=torch.from_numpy(np.full(num_envs, step, dtype=np.int64)),
        horizon=horizon,
        host_params=torch.from_numpy(np.full(num_envs, world.host_params, dtype=np.float32)),
        initial_accuracy=_float(world.tracker.initial_accuracy),
        initial_loss=_float(world.tracker.initial_loss),
        ledgers={},
    )


@dataclass(frozen=True)
class Owed:
    """A transition that is still to be paid.

    Attributes:
        turn, ctx: what happened.
        late: first step of the streak of every environment that is found to have diverged earlier.
        valid: [E], whose transition counts.
    """

    turn: Turn
    ctx: RewardContext
    late: Mapping[int, int]
    valid: NDArray[np.bool_]

    def corrections(self) -> list[Correction]:
        """Return the past transitions that became terminal."""
        death_pay = self.turn.run.reward_account.function.death_pay
        return [Correction(env, first, death_pay) for env, first in self.late.items()]


def owe(turn: Turn, ctx: RewardContext) -> Owed:
    """Say whose transition counts.

    A divergence makes the first transition of its streak terminal: this one and those between become invalid.
    """
    late = {
        env: verdict.first_step
        for env, verdict in turn.verdicts.items()
        if verdict.panic is not None and verdict.first_step < int(ctx.t[env])
    }
    valid = turn.ran.copy()
    if late:
        valid[list(late)] = False
    for env in turn.envs:
        account = turn.run.world.accounts[env]
        account.length = late.get(env, account.length) + 1
    return Owed(turn, ctx, late, valid)


# lighter than no_grad; what leaves it is copied into rollouts and summed
@torch.inference_mode()
def pay(owed: Owed) -> Tensor:
    """Pay the run's reward and every cross-evaluated one; return the run's own, [E]."""
    run, earns = owed.turn.run, _flags(owed.valid)
    reward_accounts = [run.reward_account, *run.xeval.values()]
    rewards = [_paid(reward_account, owed, earns) for reward_account in reward_accounts]
    for env, first in owed.late.items():
        for reward_account in reward_accounts:
            reward_account.take_back(env, first)
    return rewards[0]


def _paid(reward_account: RewardAccount, owed: Owed, earns: Tensor) -> Tensor:
    run = owed.turn.run
    mode = reward_account.function.name
    who = payer(mode, run.spec.label, scores_only=mode != run.reward_account.function.name)
    ctx = replace(owed.ctx, ledgers=reward_account.ledgers)
    return reward_account.pay(ctx, earns, who, run.world.episode)


def flag_hacking(turn: Turn, post: SlotState) -> None:
    """Report, once per episode and pattern, contributions that the total effect does not bear out."""
    gains, effects = measured(post.contribution.numpy()), post.cf.tolist()
    credits, bests = total(at_least(gains, 0.0)).tolist(), gains.max(1).tolist()
    for env in turn.envs:
        cf, best = effects[env], bests[env]
        ratio = credits[env] / cf if cf > 0.0 else 0.0
        if ratio >= _ATTRIBUTION_RATIO:
            _flag(turn, env, "attribution_ratio", ratio=ratio, cf=cf)
        if best > _RANSOM_GAIN and cf < _RANSOM_TOTAL:
            _flag(turn, env, "ransomware", c=best, cf=cf)


def _flag(turn: Turn, env: int, pattern: str, **values: float) -> None:
    flagged = turn.run.world.accounts[env].flagged
    if pattern not in flagged:
        flagged.add(pattern)
        turn.run.world.event(env, "reward_hacking_suspected", pattern=pattern, values=values)


def _flags(values: NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(values.copy())


def _ints(values: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def _float(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
