"""Acting as one graph replay on CUDA: network, masks, floors, sampling and log-probabilities of a step.

What is replayed is what ``Rollout.act`` runs elsewhere. Inputs are copied to fixed addresses, one packed
vector comes back in one copy. Axes: E environments, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.rl.nets import State
from worker.rl.replayed import Replayed

#: (features, ids, masks, state, uniforms) to actions [E, H], log-probability [E] and the state after.
Step = Callable[[Tensor, Tensor, Mapping[str, Tensor], State, Tensor], tuple[Tensor, Tensor, State]]


@dataclass
class Acted:
    """What a step chose.

    Attributes:
        actions: [E, H] int64 on the device.
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
        inputs: an example of features, ids, masks, state and uniforms.
    """

    def __init__(self, step: Step, inputs: tuple[Tensor, Tensor, Mapping[str, Tensor], State, Tensor]) -> None:
        _, _, masks, state, _ = inputs
        names, layers = list(masks), len(state)

        def run(parts: list[Tensor]) -> list[Tensor]:
            features, ids, *rest = parts
            before = tuple(rest[len(names) : len(names) + layers])
            actions, log_prob, after = step(features, ids, dict(zip(names, rest, strict=False)), before, rest[-1])
            packed = torch.cat([actions.flatten().double(), log_prob.sum()[None].double()])
            return [packed, actions, log_prob, *after]

        self._replayed = Replayed(run, _flat(inputs))
        self._landed = torch.empty(0, dtype=torch.float64, pin_memory=True)

    def __call__(self, inputs: tuple[Tensor, Tensor, Mapping[str, Tensor], State, Tensor]) -> Acted:
        """Replay on new inputs and read the choice back."""
        packed, actions, log_prob, *after = self._replayed(_flat(inputs))
        if self._landed.numel() != packed.numel():
            self._landed = torch.empty(packed.numel(), dtype=torch.float64, pin_memory=True)
        self._landed.copy_(packed, non_blocking=True)
        kept = tuple(part.clone() for part in after)
        torch.cuda.current_stream(packed.device).synchronize()
        chosen = self._landed[:-1].to(torch.int64).view(actions.shape)
        return Acted(actions, chosen, log_prob, float(self._landed[-1]), kept)


def _flat(inputs: tuple[Tensor, Tensor, Mapping[str, Tensor], State, Tensor]) -> list[Tensor]:
    features, ids, masks, state, uniforms = inputs
    return [features, ids, *masks.values(), *state, uniforms]
