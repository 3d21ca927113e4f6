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
        features, ids, masks, state, uniforms = inputs
        self._names = list(masks)
        given = [features, ids, *masks.values(), *state, uniforms]
        self._inputs = [tensor.detach().clone() for tensor in given]
        self._layers = len(state)
        stream = torch.cuda.Stream(features.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(features.device))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            self._run(step)
            stream.synchronize()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._outputs = self._run(step)
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(features.device).wait_stream(stream)
        self._landed = torch.empty(self._outputs[0].shape, dtype=torch.float64, pin_memory=True)

    def __call__(
        self, features: Tensor, ids: Tensor, masks: Mapping[str, Tensor], state: State, uniforms: Tensor
    ) -> Acted:
        """Replay on new inputs and read the choice back."""
        torch._foreach_copy_(self._inputs, [features, ids, *masks.values(), *state, uniforms])
        self._graph.replay()
        packed, actions, log_prob, after = self._outputs
        self._landed.copy_(packed, non_blocking=True)
        kept = tuple(part.clone() for part in after)
        torch.cuda.current_stream(features.device).synchronize()
        chosen = self._landed[:-1].to(torch.int64).view(actions.shape)
        return Acted(actions, chosen, log_prob, float(self._landed[-1]), kept)

    def _run(self, step: Step) -> tuple[Tensor, Tensor, Tensor, State]:
        features, ids, *rest = self._inputs
        masks = dict(zip(self._names, rest, strict=False))
        state = tuple(rest[len(self._names) : len(self._names) + self._layers])
        actions, log_prob, after = step(features, ids, masks, state, rest[-1])
        packed = torch.cat([actions.flatten().double(), log_prob.sum()[None].double()])
        return packed, actions, log_prob, after
