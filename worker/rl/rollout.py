"""Storage of one round of one run, and the calls that fill it: ``act``, ``see`` and ``pay``.

Buffers are allocated once and reused. Observations are stored normalised (and raw, for the later
refresh of the statistics); masks are stored and re-used bit for bit in the update.
Axes: T step, E environment, O features, I ids, H heads, N choices of the widest head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.rl.acting import Acted, Actor
from worker.rl.copying import copy_each
from worker.rl.heads import Floors, Heads, choose
from worker.rl.interfaces import CorrectionLike, ObservationLike, SeenLike
from worker.rl.nets import PolicyNet, State
from worker.rl.normalize import ObsNormalizer
from worker.rl.precision import autocast


class PolicyError(RuntimeError):
    """The policy produced no usable action: a non-finite distribution or no legal choice."""


@dataclass
class _Row:
    """What is stored of one step, as views made once: indexing a buffer costs as much as filling it.

    The row after the last step holds an observation alone.
    """

    raw: Tensor
    features: Tensor
    ids: Tensor
    masks: dict[str, Tensor]


class Rollout:
    """One round of one run.

    Args:
        num_steps: T.
        heads: action layout.
        obs_norm: normaliser, or None to store observations as they are.
        precision: ``fp32`` or ``bf16``.
    """

    def __init__(self, num_steps: int, heads: Heads, obs_norm: ObsNormalizer | None, precision: str = "fp32") -> None:
        self.num_steps, self.heads, self.obs_norm, self.precision = num_steps, heads, obs_norm, precision
        self.allocated = False
        self._actor: Actor | None = None
        self._acts_for: tuple[PolicyNet, Floors | None] | None = None

    def begin(self, observation: ObservationLike, masks: Mapping[str, Tensor], state: State) -> None:
        """Start a round at ``observation`` with the recurrent state before it."""
        if not self.allocated:
            self._allocate(observation, masks)
        self.initial_state = self.state = state
        self.states: list[State] = []
        self.finals: dict[int, tuple[Tensor, Tensor]] = {}
        self._store(0, observation, masks)

    def act(self, net: PolicyNet, t: int, uniforms: Tensor | None, floors: Floors | None) -> Tensor:
        """Choose and store the actions [E, H] of step ``t``; a non-finite policy raises ``PolicyError``.

        On CUDA the step is one graph replay and the actions returned lie on the host.
        """
        row, chosen, log_probs = self._rows[t], self._actions[t], self._log_probs[t]
        if self.features.is_cuda and uniforms is not None:
            with torch.no_grad():
                acted = self._replay(net, floors, (row.features, row.ids, row.masks, self.state, uniforms))
            chosen.copy_(acted.actions)
            log_probs.copy_(acted.log_prob)
            chosen, self.state, total = acted.chosen, acted.state, acted.total
        else:
            # lighter than no_grad; what leaves it is stored, or the state, which ``see`` makes anew
            with torch.inference_mode():
                with autocast(self.features.device, self.precision):
                    logits, self.state = net.step(row.features, row.ids, self.state)
                actions, log_prob = choose(self.heads, logits, row.masks, uniforms, floors)
                chosen.copy_(actions)
                log_probs.copy_(log_prob)
                total = sum(log_prob.tolist())
        self.states.append(self.state)
        if not math.isfinite(total):
            raise PolicyError(f"step {t}: non-finite action distribution")
        return chosen

    def _replay(
        self,
        net: PolicyNet,
        floors: Floors | None,
        inputs: tuple[Tensor, Tensor, Mapping[str, Tensor], State, Tensor],
    ) -> Acted:
        """Act through the captured step; it is captured anew for another network or when floors come or go."""
        known = self._acts_for
        if self._actor is None or known is None or known[0] is not net or (known[1] is None) != (floors is None):
            own = None if floors is None else Floors(floors.value.clone(), floors.allowed.clone())
            known = self._acts_for = (net, own)

            def step(
                features: Tensor, ids: Tensor, masks: Mapping[str, Tensor], state: State, uniforms: Tensor
            ) -> tuple[Tensor, Tensor, State]:
                with autocast(features.device, self.precision):
                    logits, after = net.step(features, ids, state)
                return *choose(self.heads, logits, masks, uniforms, own), after

            self._actor = Actor(step, inputs)
        if floors is not None and known[1] is not None:
            known[1].value.copy_(floors.value)
        return self._actor(inputs)

    def pay(self, t: int, reward: Tensor) -> None:
        """Store the reward [E] of step ``t``."""
        self._rewards[t].copy_(reward)

    def see(self, t: int, result: SeenLike) -> None:
        """Store what step ``t`` led to and carry the recurrent state over episode ends."""
        copy_each(self._flags[t], (result.terminated, result.truncated, result.valid))
        if result.final_observation is not None:
            final = result.final_observation
            features = final.features if self.obs_norm is None else self.obs_norm(final.features)
            self.finals[t] = (features.clone(), final.ids.clone())
        if self.state:
            keep = (~(self.terminated[t] | self.truncated[t])).to(self.state[0].dtype).view(1, -1, 1)
            self.state = tuple(part * keep for part in self.state)
        self._store(t + 1, result.observation, result.masks)
        for correction in result.corrections:
            self._correct(correction)

    def final(self, t: int) -> tuple[Tensor, Tensor]:
        """Return the normalised features [E, O] and ids [E, I] that step ``t`` led to, before any reset."""
        return self.finals.get(t, (self.features[t + 1], self.ids[t + 1]))

    def _correct(self, correction: CorrectionLike) -> None:
        self.rewards[correction.step, correction.env] = correction.reward
        self.terminated[correction.step, correction.env] = True
        self.truncated[correction.step, correction.env] = False
        self.valid[correction.step + 1 :, correction.env] = False

    def _store(self, t: int, observation: ObservationLike, masks: Mapping[str, Tensor]) -> None:
        row = self._rows[t]
        row.raw.copy_(observation.features)
        if self.obs_norm is not None:
            row.features.copy_(self.obs_norm(row.raw))
        if self.ids.shape[-1]:
            row.ids.copy_(observation.ids)
        copy_each(list(row.masks.values()), [masks[name] for name in row.masks])

    def _allocate(self, observation: ObservationLike, masks: Mapping[str, Tensor]) -> None:
        T, device = self.num_steps, observation.features.device
        E, O = observation.features.shape  # noqa: E741 - axis letters of the module docstring
        self.raw = torch.zeros(T + 1, E, O, device=device)
        self.features = self.raw if self.obs_norm is None else torch.zeros_like(self.raw)
        self.ids = torch.zeros(T + 1, *observation.ids.shape, dtype=torch.int64, device=device)
        self.masks = {
            spec.name: torch.zeros(T + 1, *masks[spec.name].shape, dtype=torch.bool, device=device)
            for spec in self.heads.specs
        }
        self.actions = torch.zeros(T, E, len(self.heads.specs), dtype=torch.int64, device=device)
        self.log_probs, self.rewards = torch.zeros(2, T, E, device=device)
        self.terminated, self.truncated, self.valid = torch.zeros(3, T, E, dtype=torch.bool, device=device)
        masks_of = [
            dict(zip(self.masks, row, strict=True))
            for row in zip(*(mask.unbind() for mask in self.masks.values()), strict=True)
        ]
        self._rows = [
            _Row(*row)
            for row in zip(self.raw.unbind(), self.features.unbind(), self.ids.unbind(), masks_of, strict=True)
        ]
        self._actions, self._log_probs = self.actions.unbind(), self.log_probs.unbind()
        self._rewards = self.rewards.unbind()
        parts = (self.terminated, self.truncated, self.valid)
        self._flags = list(zip(*(part.unbind() for part in parts), strict=True))
        self.allocated = True
