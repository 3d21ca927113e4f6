"""Storage of one round of one run, and the calls that fill it: ``act``, ``see`` and ``pay``.

Buffers are allocated once and reused. Observations are stored normalised (and raw, for the later
refresh of the statistics); masks are stored and re-used bit for bit in the update.
Axes: T step, E environment, O features, I ids, P bytes of all images, H heads, N outputs of the widest head.

Acting as one graph replay on CUDA: network, masks, floors, sampling and log-probabilities of a step.

What is replayed is what ``Rollout.act`` runs elsewhere. Inputs are copied to fixed addresses, one packed
vector comes back in one copy. Axes: E environments, H heads.

The rollouts of a run's cohorts as one, for the update. Axes: T step, E environment of the cohort or run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.envs.base import Correction, Observation, Seen
from worker.rl.cuda import Replayed, autocast, copy_each
from worker.rl.heads import Floors, Heads, choose
from worker.rl.nets import PolicyNet, State
from worker.rl.normalise import ObsNormalizer

#: Features, ids, masks, recurrent state, noise and the bytes of images of a step, None where there are none.
Inputs = tuple[Tensor, Tensor, Mapping[str, Tensor], State, Tensor, Tensor | None]
#: ``Inputs`` to actions [E, C], log-probability [E] and the state after.
Step = Callable[[Tensor, Tensor, Mapping[str, Tensor], State, Tensor, Tensor | None], tuple[Tensor, Tensor, State]]


@dataclass
class Acted:
    """What a step chose.

    Attributes:
        actions: [E, C] on the device.
        chosen: the same on the host.
        log_prob: [E] on the device.
        total: sum of ``log_prob``, on the host.
        state: recurrent state after the step, the caller's to keep.
    """

    actions: Tensor
    chosen: Tensor
    log_prob: Tensor
    total: float
    state: State


class Actor:
    """One captured step.

    Args:
        step: what is captured; weights are read at their addresses, so updates in place are seen.
        inputs: an example.
    """

    def __init__(self, step: Step, inputs: Inputs) -> None:
        _, _, masks, state, _, pixels = inputs
        names, layers = list(masks), len(state)

        def run(parts: list[Tensor]) -> list[Tensor]:
            features, ids, noise, *rest = parts
            before = tuple(rest[len(names) : len(names) + layers])
            seen = None if pixels is None else rest[-1]
            actions, log_prob, after = step(features, ids, dict(zip(names, rest, strict=False)), before, noise, seen)
            packed = torch.cat([actions.flatten().double(), log_prob.sum()[None].double()])
            return [packed, actions, log_prob, *after]

        self._replayed = Replayed(run, _flat(inputs))
        self._landed = torch.empty(0, dtype=torch.float64, pin_memory=True)

    def __call__(self, inputs: Inputs) -> Acted:
        """Replay on new inputs and read the choice back."""
        packed, actions, log_prob, *after = self._replayed(_flat(inputs))
        if self._landed.numel() != packed.numel():
            self._landed = torch.empty(packed.numel(), dtype=torch.float64, pin_memory=True)
        self._landed.copy_(packed, non_blocking=True)
        kept = tuple(part.clone() for part in after)
        torch.cuda.current_stream(packed.device).synchronize()
        chosen = self._landed[:-1].to(actions.dtype).view(actions.shape)
        return Acted(actions, chosen, log_prob, float(self._landed[-1]), kept)


def _flat(inputs: Inputs) -> list[Tensor]:
    features, ids, masks, state, noise, pixels = inputs
    return [features, ids, noise, *masks.values(), *state, *([] if pixels is None else [pixels])]


class PolicyError(RuntimeError):
    """The policy produced no usable action: a non-finite distribution or no legal choice."""


def no_usable_action(t: int) -> PolicyError:
    """Return the error of a policy whose distribution in step ``t`` is not finite."""
    return PolicyError(f"step {t}: non-finite action distribution")


@dataclass
class _Row:
    """What is stored of one step, as views made once: indexing a buffer costs as much as filling it.

    The row after the last step holds an observation alone.
    """

    raw: Tensor
    features: Tensor
    ids: Tensor
    pixels: Tensor | None
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

    def begin(self, observation: Observation, masks: Mapping[str, Tensor], state: State) -> None:
        """Start a round at ``observation`` with the recurrent state before it."""
        if not self.allocated:
            self._allocate(observation, masks)
        self.initial_state = self.state = state
        self.states: list[State] = []
        self.finals: dict[int, Observation] = {}
        self._store(0, observation, masks)

    def act(self, net: PolicyNet, t: int, noise: Tensor | None, floors: Floors | None) -> Tensor:
        """Choose and store the actions [E, C] of step ``t``; a non-finite policy raises ``PolicyError``.

        On CUDA the step is one graph replay and the actions returned lie on the host.
        """
        row, chosen, log_probs = self._rows[t], self._actions[t], self._log_probs[t]
        if self.features.is_cuda and noise is not None:
            with torch.no_grad():
                acted = self._replay(net, floors, (row.features, row.ids, row.masks, self.state, noise, row.pixels))
            chosen.copy_(acted.actions)
            log_probs.copy_(acted.log_prob)
            chosen, self.state, total = acted.chosen, acted.state, acted.total
        else:
            # lighter than no_grad; what leaves it is stored, or the state, which ``see`` makes anew
            with torch.inference_mode():
                with autocast(self.features.device, self.precision):
                    logits, self.state = net.step(row.features, row.ids, self.state, row.pixels)
                actions, log_prob = choose(self.heads, logits, row.masks, noise, floors)
                chosen.copy_(actions)
                log_probs.copy_(log_prob)
                total = sum(log_prob.tolist())
        self.states.append(self.state)
        if not math.isfinite(total):
            raise no_usable_action(t)
        return chosen

    def _replay(self, net: PolicyNet, floors: Floors | None, inputs: Inputs) -> Acted:
        """Act through the captured step; it is captured anew for another network or when floors come or go."""
        known = self._acts_for
        if self._actor is None or known is None or known[0] is not net or (known[1] is None) != (floors is None):
            own = None if floors is None else Floors(floors.value.clone(), floors.allowed.clone())
            known = self._acts_for = (net, own)

            def step(
                features: Tensor,
                ids: Tensor,
                masks: Mapping[str, Tensor],
                state: State,
                noise: Tensor,
                pixels: Tensor | None,
            ) -> tuple[Tensor, Tensor, State]:
                with autocast(features.device, self.precision):
                    logits, after = net.step(features, ids, state, pixels)
                return *choose(self.heads, logits, masks, noise, own), after

            self._actor = Actor(step, inputs)
        if floors is not None and known[1] is not None:
            known[1].value.copy_(floors.value)
        return self._actor(inputs)

    def pay(self, t: int, reward: Tensor) -> None:
        """Store the reward [E] of step ``t``."""
        self._rewards[t].copy_(reward)

    def see(self, t: int, result: Seen) -> None:
        """Store what step ``t`` led to and carry the recurrent state over episode ends."""
        copy_each(self._flags[t], (result.terminated, result.truncated, result.valid))
        if result.final_observation is not None:
            self.keep_final(t, result.final_observation)
        if self.state:
            keep = (~(self.terminated[t] | self.truncated[t])).to(self.state[0].dtype).view(1, -1, 1)
            self.state = tuple(part * keep for part in self.state)
        self._store(t + 1, result.observation, result.masks)
        for correction in result.corrections:
            self._correct(correction)

    def keep_final(self, t: int, final: Observation) -> None:
        """Store the observation that step ``t`` led to where an episode ended and was reset."""
        features = final.features if self.obs_norm is None else self.obs_norm(final.features)
        pixels = None if final.pixels is None else final.pixels.clone()
        self.finals[t] = Observation(features.clone(), final.ids.clone(), pixels)

    def final(self, t: int) -> Observation:
        """Return the observation that step ``t`` led to, before any reset, its features normalised."""
        pixels = None if self.pixels is None else self.pixels[t + 1]
        return self.finals.get(t, Observation(self.features[t + 1], self.ids[t + 1], pixels))

    def _correct(self, correction: Correction) -> None:
        self.rewards[correction.step, correction.env] = correction.reward
        self.terminated[correction.step, correction.env] = True
        self.truncated[correction.step, correction.env] = False
        self.valid[correction.step + 1 :, correction.env] = False

    def _store(self, t: int, observation: Observation, masks: Mapping[str, Tensor]) -> None:
        row = self._rows[t]
        row.raw.copy_(observation.features)
        if self.obs_norm is not None:
            row.features.copy_(self.obs_norm(row.raw))
        if self.ids.shape[-1]:
            row.ids.copy_(observation.ids)
        if row.pixels is not None and observation.pixels is not None:
            row.pixels.copy_(observation.pixels)
        copy_each(list(row.masks.values()), [masks[name] for name in row.masks])

    def _allocate(self, observation: Observation, masks: Mapping[str, Tensor]) -> None:
        T, device = self.num_steps, observation.features.device
        E, O = observation.features.shape  # noqa: E741 - axis letters of the module docstring
        self.raw = torch.zeros(T + 1, E, O, device=device)
        self.features = self.raw if self.obs_norm is None else torch.zeros_like(self.raw)
        self.ids = torch.zeros(T + 1, *observation.ids.shape, dtype=torch.int64, device=device)
        self.pixels = None
        if observation.pixels is not None:
            self.pixels = observation.pixels.new_zeros(T + 1, *observation.pixels.shape)
        self.masks = {
            spec.name: torch.zeros(T + 1, *masks[spec.name].shape, dtype=torch.bool, device=device)
            for spec in self.heads.specs
        }
        self.actions = torch.zeros(T, E, self.heads.num_columns, dtype=self.heads.canonical.dtype, device=device)
        self.log_probs, self.rewards = torch.zeros(2, T, E, device=device)
        self.terminated, self.truncated, self.valid = torch.zeros(3, T, E, dtype=torch.bool, device=device)
        masks_of = [
            dict(zip(self.masks, row, strict=True))
            for row in zip(*(mask.unbind() for mask in self.masks.values()), strict=True)
        ]
        pixels = [None] * (T + 1) if self.pixels is None else self.pixels.unbind()
        views = (self.raw.unbind(), self.features.unbind(), self.ids.unbind(), pixels, masks_of)
        self._rows = [_Row(*row) for row in zip(*views, strict=True)]
        self._actions, self._log_probs = self.actions.unbind(), self.log_probs.unbind()
        self._rewards = self.rewards.unbind()
        parts = (self.terminated, self.truncated, self.valid)
        self._flags = list(zip(*(part.unbind() for part in parts), strict=True))
        self.allocated = True


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
    pixels = [part.pixels for part in parts if part.pixels is not None]
    whole.pixels = torch.cat(pixels, dim=1) if pixels else None
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


def _finals(parts: Sequence[Observation]) -> Observation:
    pixels = [part.pixels for part in parts if part.pixels is not None]
    features, ids = torch.cat([part.features for part in parts]), torch.cat([part.ids for part in parts])
    return Observation(features, ids, torch.cat(pixels) if pixels else None)
