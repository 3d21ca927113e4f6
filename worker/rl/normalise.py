"""Running statistics of one run: observations, returns (PopArt) and rewards (training.md 1.15).

Nothing here is shared by runs. Statistics are float64, frozen during rollout and update and
refreshed once per round by the caller. Axes: N sample, O observation feature, T step, E environment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

_EPS = 1e-4
_UNKNOWN = -1.0
#: Weight of the newest round in the return statistics once 1 / rounds seen has fallen below it.
_RETURN_WEIGHT = 0.1
_MIN_STD = 1e-4


class ObsNormalizer:
    """Exact parallel mean and variance (Chan et al. 1979) of the continuous features.

    One-hots, flags and ids are passed through; so is -1 where it means "unknown".

    Args:
        continuous: [O] bool, features to normalise.
        sentinel: [O] bool, features where -1 is "unknown".
        clip: bound of the normalised value.
    """

    def __init__(self, continuous: Tensor, sentinel: Tensor, clip: float) -> None:
        self.continuous, self.clip = continuous, clip
        #: What stands for "unknown"; a feature that has no such value is compared with NaN, which equals nothing.
        self._unknown = torch.where(sentinel, _UNKNOWN, torch.nan)
        self.count = torch.zeros_like(continuous, dtype=torch.float64)
        self.mean = torch.zeros_like(self.count)
        self.m2 = torch.zeros_like(self.count)
        self._refresh()

    def __call__(self, features: Tensor) -> Tensor:
        """Return normalised features [.., O] float32; pure."""
        scaled = ((features - self._shift) * self._scale).clamp(-self.clip, self.clip)
        return torch.where(self._usable & (features != self._unknown), scaled, features)

    @classmethod
    def stack(cls, normalisers: Sequence[ObsNormalizer]) -> ObsNormalizer:
        """Return one for features [R, E, O] that does to those of each run what its own does now; it is not updated.

        Args:
            normalisers: of each run; their flags and clips are equal.
        """
        stacked = copy(normalisers[0])
        for name in ("_shift", "_scale", "_usable"):
            setattr(stacked, name, torch.stack([getattr(own, name) for own in normalisers]).unsqueeze(1))
        return stacked

    def update(self, features: Tensor, valid: Tensor) -> None:
        """Merge samples [N, O] of which rows ``valid`` [N] count."""
        use = (self._applies(features) & valid.unsqueeze(-1)).to(torch.float64)
        x = torch.where(use > 0, features.to(torch.float64), 0.0)
        n = use.sum(0)
        mean = x.sum(0) / n.clamp(min=1)
        m2 = (use * (x - mean) ** 2).sum(0)
        total = (self.count + n).clamp(min=1)
        delta = mean - self.mean
        # M2 = M2_a + M2_b + delta^2 n_a n_b / (n_a + n_b)
        self.m2 = self.m2 + m2 + delta**2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.count = self.count + n
        self._refresh()

    def clipped_share(self, normalised: Tensor) -> Tensor:
        """Return the share of continuous entries of normalised features at the clip bound."""
        at_bound = (normalised.abs() >= self.clip) & self.continuous
        return at_bound.sum() / (self.continuous.sum() * normalised[..., 0].numel()).clamp(min=1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore ``state_dict``."""
        for name in ("count", "mean", "m2"):
            setattr(self, name, state[name].to(self.count.device, torch.float64).clone())
        self._refresh()

    def _applies(self, features: Tensor) -> Tensor:
        return self.continuous & (features != self._unknown)

    def _refresh(self) -> None:
        variance = self.m2 / self.count.clamp(min=1)
        self._shift = self.mean.float()
        self._scale = (1.0 / torch.sqrt(variance + _EPS)).float()
        self._usable = self.continuous & (self.count > 0)


class PopArt:
    """Mean and std of returns; the value layer predicts (V - mean) / std (van Hasselt et al. 2016).

    The first statistics are an initialisation: the untrained layer is then read in the new units.
    Every later change rescales the layer so that its de-normalised outputs stay what they were.
    """

    def __init__(self) -> None:
        self.mean, self.std, self.rounds = 0.0, 1.0, 0

    def normalise(self, values: Tensor) -> Tensor:
        """Return values in return units as normalised units."""
        return (values - self.mean) / self.std

    def denormalise(self, values: Tensor) -> Tensor:
        """Return normalised values in return units."""
        return values * self.std + self.mean

    def update(self, returns: Tensor, layer: nn.Linear) -> None:
        """Move the statistics towards the valid returns [N] of a round and rescale ``layer`` exactly."""
        moments = torch.stack([returns.double().mean(), (returns.double() ** 2).mean()]).tolist()
        if not all(math.isfinite(m) for m in moments):
            return
        old_mean, old_std = self.mean, self.std
        weight = max(1.0 / (self.rounds + 1), _RETURN_WEIGHT)
        second = self.std**2 + self.mean**2
        self.mean += weight * (moments[0] - self.mean)
        second += weight * (moments[1] - second)
        self.std = max(math.sqrt(max(second - self.mean**2, 0.0)), _MIN_STD)
        if self.rounds > 0:
            with torch.no_grad():
                # w' = w s / s',  b' = (s b + m - m') / s'
                layer.weight.mul_(old_std / self.std)
                layer.bias.mul_(old_std / self.std).add_((old_mean - self.mean) / self.std)
        self.rounds += 1

    def state_dict(self) -> dict[str, float]:
        """Return the statistics."""
        return {"mean": self.mean, "std": self.std, "rounds": float(self.rounds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""
        self.mean, self.std, self.rounds = float(state["mean"]), float(state["std"]), int(state["rounds"])


class RewardScaler:
    """Divide rewards by the running std of the discounted return, clipped to +-10.

    Args:
        num_envs: E.
        gamma: discount of the return whose spread is measured.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self.gamma = gamma
        self.carry = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.moments = torch.zeros(3, dtype=torch.float64, device=device)

    def __call__(self, rewards: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """Merge a round's rewards [T, E] into the statistics and return them scaled."""
        discounted = torch.zeros_like(rewards, dtype=torch.float64)
        for t in range(rewards.shape[0]):
            discounted[t] = self.carry * self.gamma + rewards[t]
            self.carry = torch.where(ended[t], 0.0, discounted[t])
        sample = discounted[valid]
        self.moments = self.moments + torch.stack(
            [valid.sum().double(), sample.sum(), (sample**2).sum()],
        )
        count, total, squares = self.moments
        variance = squares / count.clamp(min=1) - (total / count.clamp(min=1)) ** 2
        return (rewards / torch.sqrt(variance.clamp(min=0) + _EPS).to(rewards.dtype)).clamp(-10.0, 10.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics."""
        return {"carry": self.carry, "moments": self.moments}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore ``state_dict``."""
        self.carry = state["carry"].to(self.carry.device).clone()
        self.moments = state["moments"].to(self.moments.device).clone()
