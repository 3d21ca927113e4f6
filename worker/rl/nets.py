"""Policy networks: a separate actor-critic MLP and a recurrent trunk (training.md 1.14).

Both answer the same three calls: ``step`` (logits of one step), ``step_values`` and ``sequence``
(logits and values of a whole rollout, with resets inside). Parameters live in one flat vector so
that the optimiser, the gradient norm and the hash each are a few vector operations. Modules are
built without touching a global generator and filled from keyed draws.
Axes: T step, E environment, O features, I ids, P bytes of all images, H heads, N outputs of the widest head, R run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

from lockstep.spec.sections import Net
from worker.rl.affine import Affine, affine, at_own_address, tanh_body, weights
from worker.rl.encoders import Encoders, Image
from worker.rl.gaussian import LOG_STD_MAX, LOG_STD_MIN
from worker.rl.heads import Heads
from worker.rl.initial import Draw, initial_value
from worker.rl.layers import LSTM, linear, with_memory
from worker.rl.recurrence import CELL, Cell, Resets, over_episodes, through_layers

#: Recurrent state: () for an MLP, (h, c) each [layers, E, hidden] for an LSTM.
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class InputLayout:
    """Sizes of an observation.

    Attributes:
        num_features: O.
        num_ids: I.
        id_vocab: number of distinct ids.
        id_dim: width of an id's embedding.
        images: (channels, height, width) of each image.
    """

    num_features: int
    num_ids: int
    id_vocab: int
    id_dim: int
    images: tuple[Image, ...] = ()


class _Embed(nn.Module):
    """Encoded images, then features, then the embeddings of ids (-1 = none)."""

    def __init__(self, cfg: Net, layout: InputLayout) -> None:
        super().__init__()
        self.layout = layout
        #: Inputs of the first layer.
        self.width = layout.num_features + layout.num_ids * layout.id_dim
        if layout.num_ids:
            self.table = nn.Parameter(torch.empty(layout.id_vocab + 1, layout.id_dim))
        if layout.images:
            self.encoders = Encoders(layout.images, cfg.encoder or "auto")
            self.width += self.encoders.width

    def join(self, features: Tensor, ids: Tensor, pixels: Tensor | None) -> Tensor:
        """Return the network's input [.., width]."""
        parts = [features] if pixels is None else [self.encoders(pixels), features]
        if self.layout.num_ids:
            # a one-hot product: its backward is a matrix product, deterministic on every device
            hot = F.one_hot(ids + 1, self.layout.id_vocab + 1).to(features.dtype)
            parts.append((hot @ self.table).flatten(-2))
        if len(parts) > 1:
            return torch.cat(parts, dim=-1)
        # a step of a round lies anywhere
        return features if features.is_cuda else at_own_address(features)


class Outputs(nn.Module):
    """One linear layer per head on [.., H, D] or [.., D]; logits padded to [.., H, N].

    The layer of a Gaussian head gives the means; its log standard deviations are parameters of their own, which no
    observation enters.
    """

    def __init__(self, heads: Heads, inputs: int) -> None:
        super().__init__()
        self.width = heads.width
        layers = [linear(inputs, spec.size) for spec in heads.specs]
        self.layers, self._weights = nn.ModuleList(layers), weights(*layers)
        gaussian = {
            str(i): nn.Parameter(torch.empty(spec.size)) for i, spec in enumerate(heads.specs) if spec.is_gaussian
        }
        self.log_std = nn.ParameterDict(gaussian)
        self._log_std = [gaussian.get(str(i)) for i in range(len(heads.specs))]

    def logits(self, hidden: Tensor, *, per_head: bool) -> Tensor:
        """Return padded logits; with ``per_head`` each layer reads its own row of ``hidden``."""
        return padded_logits(hidden, self._weights, self._log_std, self.width, per_head=per_head)


def padded_logits(
    hidden: Tensor, layers: Sequence[Affine], log_stds: Sequence[Tensor | None], width: int, *, per_head: bool
) -> Tensor:
    """Return logits [.., H, N] of layers and log standard deviations that may be those of several runs."""
    parts = []
    for index, (layer, log_std) in enumerate(zip(layers, log_stds, strict=True)):
        out = affine(hidden[..., index, :] if per_head else hidden, layer)
        if log_std is not None:
            out = torch.cat([out, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).expand(out.shape)], dim=-1)
        parts.append(out if out.shape[-1] == width else F.pad(out, (0, width - out.shape[-1])))
    return parts[0].unsqueeze(-2) if len(parts) == 1 else torch.stack(parts, dim=-2)


class MLPNet(nn.Module):
    """Separate actor and critic, two tanh layers each.

    Args:
        cfg: widths.
        layout: observation sizes.
        heads: action heads.
    """

    recurrent = False

    def __init__(self, cfg: Net, layout: InputLayout, heads: Heads) -> None:
        super().__init__()
        self.embed = _Embed(cfg, layout)
        self.actor_1, self.actor_2 = linear(self.embed.width, cfg.hidden), linear(cfg.hidden, cfg.hidden)
        self.outputs = Outputs(heads, cfg.hidden)
        self.critic_1, self.critic_2 = linear(self.embed.width, cfg.hidden), linear(cfg.hidden, cfg.hidden)
        self.value_out = linear(cfg.hidden, 1)
        self._actor = weights(self.actor_1, self.actor_2)
        self._critic = weights(self.critic_1, self.critic_2, self.value_out)

    def initial_state(self, num_envs: int) -> State:  # noqa: ARG002 - same call for every network
        """Return the empty state."""
        return ()

    def step(self, features: Tensor, ids: Tensor, state: State, pixels: Tensor | None = None) -> tuple[Tensor, State]:
        """Return logits [E, H, N] and the state after the step."""
        return self._logits(self.embed.join(features, ids, pixels)), state

    def step_values(
        self,
        features: Tensor,
        ids: Tensor,
        state: State,  # noqa: ARG002 - same call for every network
        pixels: Tensor | None = None,
    ) -> Tensor:
        """Return values [E] in the units of the value head."""
        return self._values(self.embed.join(features, ids, pixels))

    def sequence(
        self,
        features: Tensor,
        ids: Tensor,
        state: State,  # noqa: ARG002 - same call for every network
        resets: Resets,  # noqa: ARG002
        pixels: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return logits [.., H, N] and values [..] for any leading axes."""
        x = self.embed.join(features, ids, pixels)
        return self._logits(x), self._values(x)

    def _logits(self, x: Tensor) -> Tensor:
        return self.outputs.logits(tanh_body(x, *self._actor), per_head=False)

    def _values(self, x: Tensor) -> Tensor:
        first, second, last = self._critic
        return affine(tanh_body(x, first, second), last).squeeze(-1)


class LSTMNet(nn.Module):
    """Linear, LayerNorm, ReLU, LSTM with LayerNorm and residual; a small tower per head and for V.

    Args:
        cfg: widths.
        layout: observation sizes.
        heads: action heads.
    """

    recurrent = True

    def __init__(self, cfg: Net, layout: InputLayout, heads: Heads) -> None:
        super().__init__()
        self.layers, self.lstm_hidden, self.num_heads = cfg.lstm_layers, cfg.lstm_hidden, len(heads.specs)
        half, quarter = max(cfg.lstm_hidden // 2, 1), max(cfg.lstm_hidden // 4, 1)
        self.embed = _Embed(cfg, layout)
        self.body = linear(self.embed.width, cfg.hidden)
        self.body_norm = nn.LayerNorm(cfg.hidden)
        self.lstm = with_memory(LSTM(cfg.hidden, cfg.lstm_hidden, cfg.lstm_layers, device="meta"))
        self.lstm_norm = nn.LayerNorm(cfg.lstm_hidden)
        # the residual needs equal widths; a projection stands in where they differ
        self.skip = linear(cfg.hidden, cfg.lstm_hidden) if cfg.hidden != cfg.lstm_hidden else nn.Identity()
        self.towers = linear(cfg.lstm_hidden, self.num_heads * half)
        self.outputs = Outputs(heads, half)
        self.value_1, self.value_2 = linear(cfg.lstm_hidden, half), linear(half, quarter)
        self.value_out = linear(quarter, 1)
        parameters = dict(self.lstm.named_parameters())
        self._cells = [Cell(*(parameters[f"{name}_l{layer}"] for name in CELL)) for layer in range(self.layers)]

    def initial_state(self, num_envs: int) -> State:
        """Return zeros (h, c), each [layers, E, hidden]."""
        shape = (self.layers, num_envs, self.lstm_hidden)
        reference = self.body.weight
        return reference.new_zeros(shape), reference.new_zeros(shape)

    def step(self, features: Tensor, ids: Tensor, state: State, pixels: Tensor | None = None) -> tuple[Tensor, State]:
        """Return logits [E, H, N] and the state after the step."""
        hidden, state = self._recur(self._trunk(features, ids, pixels), state)
        return self._logits(hidden), state

    def step_values(self, features: Tensor, ids: Tensor, state: State, pixels: Tensor | None = None) -> Tensor:
        """Return values [E] in the units of the value head."""
        hidden, _ = self._recur(self._trunk(features, ids, pixels), state)
        return self._values(hidden)

    def sequence(
        self,
        features: Tensor,
        ids: Tensor,
        state: State,
        resets: Resets,
        pixels: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return logits [T, E, H, N] and values [T, E] of a rollout.

        Args:
            features: [T, E, O].
            ids: [T, E, I].
            state: recurrent state before step 0.
            resets: (t, keep) in increasing t > 0; ``keep`` [E] is 0 where an episode begins at t, else 1.
            pixels: [T, E, P], where observations have images.
        """
        x = self._trunk(features, ids, pixels)
        hidden = self._joined(x, over_episodes(self.lstm, x, (state[0], state[1]), resets))
        return self._logits(hidden), self._values(hidden)

    def _trunk(self, features: Tensor, ids: Tensor, pixels: Tensor | None) -> Tensor:
        return F.relu(self.body_norm(self.body(self.embed.join(features, ids, pixels))))

    def _recur(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Return hidden values [E, N] of inputs [E, D] and the state after the step."""
        if x.is_cuda or torch.is_autocast_enabled(x.device.type):
            out, after = self.lstm(x.unsqueeze(0), (state[0], state[1]))
            return self._joined(x, out.squeeze(0)), after
        cells = [Cell(*(part.unsqueeze(0) for part in cell)) for cell in self._cells]
        out, (hidden, memory) = through_layers(x.unsqueeze(0), cells, state[0].unsqueeze(0), state[1].unsqueeze(0))
        return self._joined(x, out.squeeze(0)), (hidden.squeeze(0), memory.squeeze(0))

    def _joined(self, x: Tensor, out: Tensor) -> Tensor:
        joined: Tensor = self.skip(x) + self.lstm_norm(out)
        return joined

    def _logits(self, hidden: Tensor) -> Tensor:
        towers = F.relu(self.towers(hidden)).view(*hidden.shape[:-1], self.num_heads, -1)
        return self.outputs.logits(towers, per_head=True)

    def _values(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.value_out(F.relu(self.value_2(F.relu(self.value_1(hidden)))))
        return values.squeeze(-1)


PolicyNet = MLPNet | LSTMNet


@dataclass
class FlatParameters:
    """All parameters of a network as one vector [P], and their gradients.

    The network's tensors are views of ``data``; ``grad`` is filled by ``backward`` in place.
    """

    data: Tensor
    grad: Tensor


def build_net(
    cfg: Net,
    layout: InputLayout,
    heads: Heads,
    draw: Draw,
    *,
    value_gain: float,
    like: PolicyNet | None = None,
) -> PolicyNet:
    """Build a CPU network and initialise it from ``draw(name, shape)`` (standard normal, float64).

    Args:
        cfg: of the network.
        layout: what it reads.
        heads: what it gives.
        draw: called for every parameter.
        value_gain: of the value's last layer.
        like: a network that was built by the same arguments and has not been trained; its values are taken over.
    """
    net = (LSTMNet if cfg.body == "lstm" else MLPNet)(cfg, layout, heads)
    if like is not None:
        net.load_state_dict(like.state_dict())
        return net
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(initial_value(name, tuple(parameter.shape), draw, value_gain))
    return net


def flatten(net: PolicyNet, device: torch.device) -> FlatParameters:
    """Move the network to ``device`` and make its parameters and gradients views of two flat vectors."""
    parameters = list(net.parameters())
    data = torch.cat([p.detach().flatten() for p in parameters]).to(device)
    grad = torch.zeros_like(data)
    offset = 0
    for parameter in parameters:
        size, shape = parameter.numel(), parameter.shape
        parameter.data = data[offset : offset + size].view(shape)
        parameter.grad = grad[offset : offset + size].view(shape)
        offset += size
    return FlatParameters(data, grad)


def strayed(net: PolicyNet, flat: FlatParameters) -> list[str]:
    """Return the names of the parameters that are not, or no longer, views of the flat vector at their place."""
    names, place, size = list[str](), flat.data.data_ptr(), flat.data.element_size()
    for name, parameter in net.named_parameters():
        if parameter.data_ptr() != place:
            names.append(name)
        place += size * parameter.numel()
    return names
