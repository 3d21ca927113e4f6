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
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from worker.envs.base import Correction, Observation, Seen
from worker.rl.cuda import Replayed, autocast, copy_each, side_by_side
from worker.rl.heads import Floors, Heads, choose
from worker.rl.nets import PolicyNet, State
from worker.rl.normalise import ObsNormalizer

#: Features, ids, masks, recurrent state, noise and the bytes of images of a step, None where there are none.
Inputs = tuple[Tensor, Tensor, Mapping[str, Tensor], State, Tensor | None, Tensor | None]
#: ``Inputs`` to actions [E, C], log-probability [E] and the state after.
Step = Callable[[Inputs], tuple[Tensor, Tensor, State]]


@dataclass
class Acted:
    """What a step chose.

    Attributes:
        actions: [E, C] on the device.
        log_prob: [E] on the device.
        state: recurrent state after the step, the caller's to keep.
        landed: pinned, where the actions and the sum of ``log_prob`` arrive, until the next step.
        copied: when they have arrived.
    """

    actions: Tensor
    log_prob: Tensor
    state: State
    landed: Tensor
    copied: torch.cuda.Event

    def read(self) -> tuple[Tensor, float]:
        """Wait for the choice and return it [E, C] on the host, and the sum of log-probabilities."""
        self.copied.synchronize()
        return self.landed[:-1].to(self.actions.dtype).view(self.actions.shape), float(self.landed[-1])


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
            actions, log_prob, after = step((features, ids, dict(zip(names, rest, strict=False)), before, noise, seen))
            packed = torch.cat([actions.flatten().double(), log_prob.sum()[None].double()])
            return [packed, actions, log_prob, *after]

        self._replayed = Replayed(run, _flat(inputs))
        self._landed = torch.empty(0, dtype=torch.float64, pin_memory=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, inputs: Inputs) -> Acted:
        """Replay on new inputs; nothing waits for it before the choice is read."""
        packed, actions, log_prob, *after = self._replayed(_flat(inputs))
        if self._landed.numel() != packed.numel():
            self._landed = torch.empty(packed.numel(), dtype=torch.float64, pin_memory=True)
        self._landed.copy_(packed, non_blocking=True)
        self._copied.record()
        return Acted(actions, log_prob, tuple(part.clone() for part in after), self._landed, self._copied)


def _flat(inputs: Inputs) -> list[Tensor]:
    features, ids, masks, state, noise, pixels = inputs
    found = [features, ids, noise, *masks.values(), *state, pixels]
    return [tensor for tensor in found if tensor is not None]


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
        groups: sizes of the groups of environments that are acted for each on its own; all together if there is one.
    """

    def __init__(
        self,
        num_steps: int,
        heads: Heads,
        obs_norm: ObsNormalizer | None,
        precision: str = "fp32",
        groups: Sequence[int] = (),
    ) -> None:
        self.num_steps, self.heads, self.obs_norm, self.precision = num_steps, heads, obs_norm, precision
        self._groups = [slice(stop - size, stop) for stop, size in zip(accumulate(groups), groups, strict=True)]
        self.allocated = False
        self._actor: Actor | None = None
        self._acted: Acted | tuple[Tensor, float]
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
        """Choose, store and return the actions [E, C] of step ``t``; a non-finite policy raises ``PolicyError``."""
        self.choose(net, t, noise, floors)
        return self.chosen(t)

    def choose(self, net: PolicyNet, t: int, noise: Tensor | None, floors: Floors | None) -> None:
        """Choose and store the actions [E, C] of step ``t``; on CUDA one graph replay that nothing waits for."""
        row, chosen, log_probs = self._rows[t], self._actions[t], self._log_probs[t]
        if self.features.is_cuda and noise is not None:
            with torch.no_grad():
                acted = self._replay(net, floors, (row.features, row.ids, row.masks, self.state, noise, row.pixels))
            chosen.copy_(acted.actions)
            log_probs.copy_(acted.log_prob)
            self.state, self._acted = acted.state, acted
        else:
            # lighter than no_grad; what leaves it is stored, or the state, which ``see`` makes anew
            with torch.inference_mode():
                inputs = (row.features, row.ids, row.masks, self.state, noise, row.pixels)
                actions, log_prob, self.state = self._step(net, floors, inputs)
                chosen.copy_(actions)
                log_probs.copy_(log_prob)
                total = sum(log_prob.tolist())
            self._acted = chosen, total
        self.states.append(self.state)

    def chosen(self, t: int) -> Tensor:
        """Return the actions [E, C] that were chosen last, in step ``t``; on CUDA they lie on the host.

        Raises:
            PolicyError: the policy is not finite.
        """
        actions, total = self._acted.read() if isinstance(self._acted, Acted) else self._acted
        if not math.isfinite(total):
            raise no_usable_action(t)
        return actions

    def _replay(self, net: PolicyNet, floors: Floors | None, inputs: Inputs) -> Acted:
        """Act through the captured step; it is captured anew for another network or when floors come or go."""
        known = self._acts_for
        if self._actor is None or known is None or known[0] is not net or (known[1] is None) != (floors is None):
            own = None if floors is None else Floors(floors.value.clone(), floors.allowed.clone())
            known = self._acts_for = (net, own)
            self._actor = Actor(partial(self._step, net, own), inputs)
        if floors is not None and known[1] is not None:
            known[1].value.copy_(floors.value)
        return self._actor(inputs)

    def _step(self, net: PolicyNet, floors: Floors | None, inputs: Inputs) -> tuple[Tensor, Tensor, State]:
        """Return actions [E, C], log-probabilities [E] and the state after, of every group on its own."""
        if len(self._groups) < 2:
            return self._act(net, floors, inputs)
        works = [partial(self._act, net, floors, inputs, rows) for rows in self._groups]
        actions, log_probs, states = zip(*side_by_side(works, inputs[0].device), strict=True)
        return torch.cat(actions), torch.cat(log_probs), _states(states)

    def _act(
        self, net: PolicyNet, floors: Floors | None, inputs: Inputs, rows: slice | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Return the same of some environments, or of all."""
        features, ids, masks, state, noise, pixels = inputs if rows is None else _of(inputs, rows)
        with autocast(features.device, self.precision):
            logits, after = net.step(features, ids, state, pixels)
        return *choose(self.heads, logits, masks, noise, floors), after

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


def _of(inputs: Inputs, rows: slice) -> Inputs:
    """Return the inputs of some environments, each in memory of its own: kernels are chosen by where it begins."""
    features, ids, masks, state, noise, pixels = inputs
    return (
        features[rows].clone(),
        ids[rows].clone(),
        {name: mask[rows].clone() for name, mask in masks.items()},
        tuple(layer[:, rows].clone() for layer in state),
        None if noise is None else noise[rows].clone(),
        None if pixels is None else pixels[rows].clone(),
    )


def _states(parts: Sequence[State]) -> State:
    return tuple(torch.cat(layers, dim=1) for layers in zip(*parts, strict=True))


def _finals(parts: Sequence[Observation]) -> Observation:
    pixels = [part.pixels for part in parts if part.pixels is not None]
    features, ids = torch.cat([part.features for part in parts]), torch.cat([part.ids for part in parts])
    return Observation(features, ids, torch.cat(pixels) if pixels else None)
