"""Storage of one round of one run, and the two calls that fill it: ``act`` and ``record``.

Buffers are allocated once and reused. Observations are stored normalised (and raw, for the later
refresh of the statistics); masks are stored and re-used bit for bit in the update.
Axes: T step, E environment, O features, I ids, H heads, N choices of the widest head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from worker.rl.acting import Acted, Actor
from worker.rl.heads import Floors, Heads, choose
from worker.rl.interfaces import CorrectionLike, ObservationLike, StepLike
from worker.rl.nets import PolicyNet, State
from worker.rl.normalize import ObsNormalizer
from worker.rl.precision import autocast


class PolicyError(RuntimeError):
    """The policy produced no usable action: a non-finite distribution or no legal choice."""


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

    @torch.no_grad()
    def act(self, net: PolicyNet, t: int, uniforms: Tensor | None, floors: Floors | None) -> Tensor:
        """Choose and store the actions [E, H] of step ``t``; a non-finite policy raises ``PolicyError``.

        On CUDA the step is one graph replay and the actions returned lie on the host.
        """
        masks = {name: mask[t] for name, mask in self.masks.items()}
        if self.features.is_cuda and uniforms is not None:
            acted = self._replay(net, floors, (self.features[t], self.ids[t], masks, self.state, uniforms))
            self.state, actions, log_prob = acted.state, acted.actions, acted.log_prob
            total, chosen = acted.total, acted.chosen
        else:
            with autocast(self.features.device, self.precision):
                logits, self.state = net.step(self.features[t], self.ids[t], self.state)
            actions, log_prob = choose(self.heads, logits, masks, uniforms, floors)
            total, chosen = log_prob.sum().item(), actions
        self.states.append(self.state)
        self.actions[t] = actions
        self.log_probs[t] = log_prob
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

    def record(self, t: int, result: StepLike) -> None:
        """Store what step ``t`` produced and carry the recurrent state over episode ends."""
        self.rewards[t] = result.reward
        self.terminated[t] = result.terminated
        self.truncated[t] = result.truncated
        self.valid[t] = result.valid
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
        self.raw[t] = observation.features
        if self.obs_norm is not None:
            self.features[t] = self.obs_norm(self.raw[t])
        if self.ids.shape[-1]:
            self.ids[t] = observation.ids
        for name, stored in self.masks.items():
            stored[t] = masks[name]

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
        self.allocated = True
