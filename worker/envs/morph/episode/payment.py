"""The end of a step: what the transition pays, which corrections it makes, what looks like hacking.

Reads the turn after training and governor; follows environment.md 6.2 step 9 and section 8. Axes: E.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.envs.base import Correction
from worker.envs.morph.episode.runs import Turn
from worker.envs.morph.life.stages import Op
from worker.envs.morph.rewards.account import RewardAccount
from worker.envs.morph.rewards.arrays import Array, Bools, Moment, Transition, at_least, total
from worker.envs.paid import payer

_ATTRIBUTION_RATIO, _RANSOM_GAIN, _RANSOM_TOTAL = 5.0, 0.1, -0.2


@dataclass(eq=False)
class Owed:
    """A transition (s_t, a_t, s_{t+1}) of all environments of a run that is still to be paid.

    Attributes:
        turn: the step as executed.
        pre, post: s_t and s_{t+1}.
        step: its index t.
        horizon: T.
        rolled_back, terminated: [E], as in ``RewardContext``.
        late: first step of the streak of every environment that is found to have diverged earlier.
        valid: [E], whose transition counts.
    """

    turn: Turn
    pre: Moment
    post: Moment
    step: int
    horizon: int
    rolled_back: Bools
    terminated: Bools
    late: Mapping[int, int]
    valid: Bools

    @property
    def is_last(self) -> bool:
        """Whether the episode ends with this step."""
        return self.step + 1 == self.horizon

    def corrections(self) -> list[Correction]:
        """Return the past transitions that became terminal."""
        death_pay = self.turn.run.reward_account.function.death_pay
        return [Correction(env, first, death_pay) for env, first in self.late.items()]

    def transition(self) -> Transition:
        """Return what rewards are computed on."""
        world, chosen, size = self.turn.run.world, self.turn.chosen, len(self.valid)
        return Transition(
            pre=self.pre,
            post=self.post,
            op=_ints([Op.WAIT if choice is None else choice.op for choice in chosen]),
            target_slot=_ints([-1 if choice is None else choice.slot for choice in chosen]),
            executed_op=_ints(self.turn.executed),
            rolled_back=self.rolled_back,
            terminated=self.terminated,
            is_last=np.full(size, self.is_last),
            t=np.full(size, self.step, dtype=np.int64),
            horizon=self.horizon,
            host_params=np.full(size, world.host_params, dtype=np.float32),
            initial_accuracy=world.tracker.initial_accuracy.astype(np.float32),
            initial_loss=world.tracker.initial_loss.astype(np.float32),
            ledgers={},
        )


def owe(turn: Turn, post: Moment, step: int, horizon: int, *, truncates: bool) -> Owed:
    """Return what is owed for a step that has been judged; ``truncates``: reaching the horizon is a truncation.

    A divergence makes the first transition of its streak terminal: this one and those between become invalid.
    """
    late = {
        env: verdict.first_step
        for env, verdict in turn.verdicts.items()
        if verdict.panic is not None and verdict.first_step < step
    }
    valid = turn.ran.copy()
    if late:
        valid[list(late)] = False
    for env in turn.envs:
        account = turn.run.world.accounts[env]
        account.length = late.get(env, account.length) + 1
    rolled_back = turn.panicked()
    terminated = turn.ran & (rolled_back | (step + 1 == horizon and not truncates))
    return Owed(turn, turn.run.moment, post, step, horizon, rolled_back, terminated, late, valid)


def pay(owed: Owed) -> Array:
    """Pay the run's reward and every cross-evaluated one; return the run's own, [E]."""
    run, moved = owed.turn.run, owed.transition()
    reward_accounts = [run.reward_account, *run.xeval.values()]
    rewards = [_paid(reward_account, owed, moved) for reward_account in reward_accounts]
    for env, first in owed.late.items():
        for reward_account in reward_accounts:
            reward_account.take_back(env, first)
    return rewards[0]


def _paid(reward_account: RewardAccount, owed: Owed, moved: Transition) -> Array:
    run = owed.turn.run
    mode = reward_account.function.name
    who = payer(mode, run.spec.label, scores_only=mode != run.reward_account.function.name)
    return reward_account.pay(moved, owed.valid, who, run.world.episode)


def flag_hacking(turn: Turn, post: Moment) -> None:
    """Report, once per episode and pattern, contributions that the total effect does not bear out."""
    effects = post.cf.tolist()
    credits, bests = total(at_least(post.paying, 0.0)).tolist(), post.paying.max(1).tolist()
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


def _ints(values: Sequence[int]) -> Array:
    return np.array([int(value) for value in values])
