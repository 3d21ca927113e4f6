"""Generalised advantage estimation as one reverse scan over [T, E] (Schulman et al. 2016, eq. 16).

The bootstrap is V of the *true* next observation: the caller passes it per step, so a truncated
step sees its final observation and a reset observation never enters. Axes: T step, E environment.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, both [T, E] in reward units.

    Args:
        rewards: [T, E].
        values: [T, E], V(s_t), de-normalised.
        next_values: [T, E], V of the true next observation x_{t+1}.
        terminated: [T, E] bool, no bootstrap and no carry beyond this step.
        truncated: [T, E] bool, bootstrap but no carry beyond this step.
        discount: (gamma, lambda).
    """
    gamma, lam = discount
    alive = (~terminated).to(rewards.dtype)
    carry = gamma * lam * (~(terminated | truncated)).to(rewards.dtype)
    # delta_t = r_t + gamma (1 - term_t) V(x_{t+1}) - V(s_t)
    delta = rewards + gamma * alive * next_values - values
    # A_t = delta_t + gamma lambda (1 - end_t) A_{t+1}
    after = torch.zeros_like(delta[0])
    backwards = []
    for step, keep in zip(delta.flip(0).unbind(), carry.flip(0).unbind(), strict=True):
        after = torch.addcmul(step, keep, after)
        backwards.append(after)
    advantages = torch.stack(backwards).flip(0)
    return advantages, advantages + values
