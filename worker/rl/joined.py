"""The rollouts of a run's cohorts as one, for the update. Axes: T step, E environment of the cohort or run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.rl.nets import State
from worker.rl.rollout import Rollout

_BUFFERS = ("raw", "features", "ids", "actions", "log_probs", "rewards", "terminated", "truncated", "valid")


def joined(parts: Sequence[Rollout]) -> Rollout:
    """Return the rollout of all environments of a run; that of its only cohort as it is.

    Args:
        parts: finished rollouts in the order of their environments.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    whole = Rollout(first.num_steps, first.heads, first.obs_norm, first.precision)
    for name in _BUFFERS:
        setattr(whole, name, torch.cat([getattr(part, name) for part in parts], dim=1))
    whole.masks = {name: torch.cat([part.masks[name] for part in parts], dim=1) for name in first.masks}
    whole.initial_state = _states([part.initial_state for part in parts])
    whole.state = _states([part.state for part in parts])
    # a run that failed in one cohort has fewer steps in another
    whole.states = [_states(states) for states in zip(*[part.states for part in parts], strict=False)]
    steps = sorted({t for part in parts for t in part.finals})
    whole.finals = {t: _finals([part.final(t) for part in parts]) for t in steps}
    return whole


def _states(parts: Sequence[State]) -> State:
    return tuple(torch.cat(layers, dim=1) for layers in zip(*parts, strict=True))


def _finals(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    features, ids = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(ids)
