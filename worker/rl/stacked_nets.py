"""Networks of several runs as one, each with its own parameters and the bits that it has alone.

Products are batched where that is exact (``worker.rl.affine``). Gradients are each run's own.
Axes: R run, T step, E environment, B row, O features, H heads, N outputs of the widest head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

from worker.rl.affine import (
    Affine,
    affine,
    at_own_address,
    back_through_tanh,
    by_input,
    by_layer,
    single,
    tanh_body,
    through_tanh,
    views_of,
)
from worker.rl.gaussian import LOG_STD_MAX, LOG_STD_MIN
from worker.rl.nets import LSTMNet, MLPNet, Outputs, State, padded_logits
from worker.rl.recurrence import CELL, Cell, Library, Resets, over_episodes, resets_of, through_layers

#: Loss [R] of logits [R, B, H, N] and values [R, B], and statistics of it.
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Judged(Protocol):
    """What is known of the loss of each run: its derivatives by logits [R, B, H, N] and values [R, B]."""

    @property
    def by_logits(self) -> Tensor:
        """Return the derivative by logits."""
        ...

    @property
    def by_values(self) -> Tensor:
        """Return the derivative by values."""
        ...


JudgedT = TypeVar("JudgedT", bound=Judged)


class _Rows:
    """Networks of several runs, equal in shape; no run's numbers enter another's.

    Args:
        net: one of them, for names and shapes; its own parameters are not used.
        data: [R, S] with S >= P, the flat parameters of each run; the layers are views of it.
        grad: the same shape, where ``learn`` puts them; None where only the forward is asked for.
    """

    def __init__(self, net: nn.Module, data: Tensor, grad: Tensor | None = None) -> None:
        self._views: dict[str, Tensor] = {}
        self._grads: dict[str, Tensor] = {}
        self._of_heads: tuple[list[Affine], list[Tensor | None]] | None = None
        offset = 0
        for name, parameter in net.named_parameters():
            columns, shape = slice(offset, offset + parameter.numel()), (len(data), *parameter.shape)
            self._views[name] = data[:, columns].view(shape)
            if grad is not None:
                self._grads[name] = grad[:, columns].view(shape)
            offset += parameter.numel()

    def _layers(self, *names: str) -> list[Affine]:
        return [(self._views[f"{name}.weight"], self._views[f"{name}.bias"]) for name in names]

    def _outputs(self, hidden: Tensor, net: Outputs, *, per_head: bool) -> Tensor:
        """Return padded logits of hidden values [R, B, D] or [R, B, H, D]."""
        if self._of_heads is None:
            names = [f"outputs.layers.{index}" for index in range(len(net.layers))]
            log_stds = [self._views.get(f"outputs.log_std.{index}") for index in range(len(names))]
            self._of_heads = [views_of(*layer) for layer in self._layers(*names)], log_stds
        layers, log_stds = self._of_heads
        # made anew: autograd would not know a view from before the parameters were changed in place
        wide = [None if log_std is None else log_std.unsqueeze(1) for log_std in log_stds]
        return padded_logits(hidden, layers, wide, net.width, per_head=per_head)


class StackedMLP(_Rows):
    """MLPs of several runs as one batched product a layer."""

    recurrent = False

    def __init__(self, net: MLPNet, data: Tensor, grad: Tensor | None = None) -> None:
        super().__init__(net, data, grad)
        self._heads = net.outputs
        self._actor = [views_of(*layer) for layer in self._layers("actor_1", "actor_2")]
        self._critic = [views_of(*layer) for layer in self._layers("critic_1", "critic_2", "value_out")]

    def step(self, features: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """Return logits [R, E, H, N] for features [R, E, O], and the state."""
        return self._outputs(tanh_body(features, *self._actor), self._heads, per_head=False), state

    def learn(self, features: Tensor, judge: Callable[[Tensor, Tensor], JudgedT]) -> JudgedT:
        """Fill the gradient of each run with that of its loss on features [R, B, O]; return what ``judge`` did.

        The gradient is written out: recorded, every layer would cost objects, calls and copies. A run alone is a stack
        of one, and so has the same bits.
        """
        (first, second, last), found = self._critic, dict[str, Tensor]()
        with torch.no_grad():
            acting, valuing = through_tanh(features, self._actor), through_tanh(features, (first, second))
            judged = judge(self._outputs(acting[-1], self._heads, per_head=False), single(valuing[-1], last))
            slope, of_heads = self._back_through_outputs(acting[-1], judged.by_logits)
            by_values = judged.by_values.unsqueeze(-1)
            found |= _named(("actor_1", "actor_2"), back_through_tanh(acting, self._actor, slope)) | of_heads
            slope = by_input(last[0], by_values)
            found |= _named(("critic_1", "critic_2"), back_through_tanh(valuing, (first, second), slope))
            found |= _named(("value_out",), by_layer(valuing[-1], by_values))
            torch._foreach_copy_([self._grads[name] for name in found], list(found.values()))
        return judged

    def _back_through_outputs(self, hidden: Tensor, by_logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the derivative by hidden values [R, B, D] for that by logits, and those by the layers of heads."""
        slope, found = torch.zeros(()), dict[str, Tensor]()
        for index in range(by_logits.shape[2]):
            name = f"outputs.layers.{index}"
            weight, log_std = self._views[f"{name}.weight"], self._views.get(f"outputs.log_std.{index}")
            size = weight.shape[1]
            by_head = by_logits[:, :, index]
            own = by_input(weight, by_head[..., :size])
            found |= _named((name,), by_layer(hidden, by_head[..., :size]))
            if log_std is not None:
                inside = (log_std >= LOG_STD_MIN) & (log_std <= LOG_STD_MAX)
                found[f"outputs.log_std.{index}"] = torch.where(inside, by_head[..., size : 2 * size].sum(1), 0.0)
            slope = own if slope.ndim == 0 else slope + own
        return slope, found

    def sequence(
        self,
        features: Tensor,
        ids: Tensor,  # noqa: ARG002 - same call for every network
        state: State,  # noqa: ARG002
        resets: Resets,  # noqa: ARG002
        pixels: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return logits [R, B, H, N] and values [R, B] for features [R, B, O]."""
        first, second, last = self._critic
        values = affine(tanh_body(features, first, second), last).squeeze(-1)
        return self.step(features)[0], values


class StackedLSTM(_Rows):
    """Recurrent networks of several runs: batched products but for the LSTM over a sequence, which each run has alone.

    Axes: a sequence is B = T E rows, step by step; a state is (h, c), each [R, layers, E, hidden].
    """

    recurrent = True

    def __init__(self, net: LSTMNet, data: Tensor, grad: Tensor | None = None) -> None:
        super().__init__(net, data, grad)
        self._net = net
        cells = [[self._views[f"lstm.{name}_l{layer}"] for name in CELL] for layer in range(net.layers)]
        self._cells = [Cell(*cell) for cell in cells]

    def step(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Return logits [R, E, H, N] for features [R, E, O], and the state after the step."""
        x = F.relu(self._normed("body_norm", affine(features, *self._layers("body"))))
        out, state = through_layers(x, self._cells, *state)
        return self._logits(self._joined(x, self._normed("lstm_norm", out))), state

    def learn(self, features: Tensor, loss_of: Loss, state: State, resets: Resets) -> tuple[Tensor, Tensor]:
        """Fill the gradient of each run with that of its loss on features [R, B, O]; return what ``loss_of`` did."""
        leaves = [view.requires_grad_() for view in self._views.values()]
        loss, told = loss_of(*self.sequence(features, torch.empty(0), state, resets))
        torch._foreach_copy_(list(self._grads.values()), torch.autograd.grad(loss.sum(), leaves))
        return loss.detach(), told

    def sequence(
        self,
        features: Tensor,
        ids: Tensor,  # noqa: ARG002 - same call for every network
        state: State,
        resets: Resets,
        pixels: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return logits [R, B, H, N] and values [R, B] for features [R, B, O]; ``keep`` of a reset is [R, E]."""
        x = F.relu(self._normed("body_norm", affine(features, *self._layers("body"))))
        weights = zip(*(part.unbind() for cell in self._cells for part in cell), strict=True)
        steps = x.view(len(x), -1, state[0].shape[2], x.shape[2]).unbind()
        states = zip(*(part.unbind() for part in state), strict=True)
        outputs = [
            over_episodes(
                _library(own, self._net.layers),
                at_own_address(rows),
                (at_own_address(first[0]), at_own_address(first[1])),
                ends,
            )
            for own, rows, first, ends in zip(weights, steps, states, resets_of(resets, len(x)), strict=True)
        ]
        out = torch.stack([own.flatten(0, 1) for own in outputs])
        hidden = self._joined(x, self._normed("lstm_norm", out))
        return self._logits(hidden), self._values(hidden)

    def _normed(self, name: str, x: Tensor) -> Tensor:
        (layer,) = self._layers(name)
        rows = zip(x.unbind(), *(part.unbind() for part in layer), strict=True)
        return torch.stack([torch.layer_norm(own, x.shape[-1:], *scale) for own, *scale in rows])

    def _joined(self, x: Tensor, out: Tensor) -> Tensor:
        return (affine(x, *self._layers("skip")) if "skip.weight" in self._views else x) + out

    def _logits(self, hidden: Tensor) -> Tensor:
        towers = F.relu(affine(hidden, *self._layers("towers"))).view(*hidden.shape[:-1], self._net.num_heads, -1)
        return self._outputs(towers, self._net.outputs, per_head=True)

    def _values(self, hidden: Tensor) -> Tensor:
        first, second, last = self._layers("value_1", "value_2", "value_out")
        return affine(F.relu(affine(F.relu(affine(hidden, first)), second)), last).squeeze(-1)


def _named(layers: Sequence[str], derivatives: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return derivatives by weight and bias of each layer by the names of these."""
    names = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    return dict(zip(names, derivatives, strict=True))


def _library(weights: tuple[Tensor, ...], layers: int) -> Library:
    """Return what ``torch.nn.LSTM`` calls, for parameters [..] in its order."""

    def run(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, hidden, memory = torch.lstm(x, state, weights, True, layers, 0.0, True, False, False)
        return out, (hidden, memory)

    return run


StackedNet = StackedMLP | StackedLSTM
