"""One run's policy as a value: networks, optimiser, normalisers; how it begins, is saved and hashed.

Nothing here is shared by runs. All draws are keyed: parameters by their name, so that arms share
the initial value of every tensor whose shape agrees.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.keys import generator, generators
from worker.envs.base import HeadSpec
from worker.rl.config import LearnerConfig
from worker.rl.cuda import Replayed, fingerprint
from worker.rl.heads import BELOW_ONE, Heads
from worker.rl.nets import FlatParameters, InputLayout, PolicyNet, State, build_net, flatten
from worker.rl.normalise import ObsNormalizer, PopArt, RewardScaler

_VALUE_GAIN = 1.0
ADAM_BETAS = (0.9, 0.999)
_VALUE_GAIN_POPART = 0.1


@dataclass(frozen=True)
class Streams:
    """Keys of a run's own draws.

    Attributes:
        seed: replicate seed.
        arm: arm index under ``crn: environment``, None when every arm shares the draws.
    """

    seed: int
    arm: int | None = None

    def generator(self, purpose: str, **key: int | str) -> np.random.Generator:
        """Return the generator of a purpose of this run."""
        return generator(self.seed, purpose, **key, **self._arm)

    @property
    def _arm(self) -> dict[str, int]:
        return {} if self.arm is None else {"arm": self.arm}

    def action_noise(
        self, round_index: int, shape: tuple[int, int, int], normal_columns: np.ndarray | None = None
    ) -> Tensor:
        """Return the noise [T, E, C] of a round that ``choose`` takes: one number per environment, step and column."""
        steps, envs, columns = shape
        keys = ({"env": e, "episode": round_index, **self._arm} for e in range(envs))
        draws = generators(self.seed, "action_noise", keys)
        rows = [noise_of(draw, (steps, columns), normal_columns) for draw in draws]
        return torch.from_numpy(np.stack(rows, axis=1))


@dataclass(frozen=True)
class ObsLayout:
    """What the learner needs to know of observations.

    Attributes:
        inputs: sizes.
        continuous: [O] bool, features to normalise.
        sentinel: [O] bool, features where -1 is "unknown".
    """

    inputs: InputLayout
    continuous: Tensor
    sentinel: Tensor


@dataclass
class Adam:
    """Moments of the flat parameter vector [P] and the number of steps taken."""

    m: Tensor
    v: Tensor
    steps: int = 0


@dataclass
class Learner:
    """The state of one run's policy: everything an update reads and changes.

    ``carry`` is the recurrent state at the round border (continuing environments), ``dead_updates``
    counts updates in a row without a single step.
    """

    cfg: LearnerConfig
    heads: Heads
    net: PolicyNet
    flat: FlatParameters
    adam: Adam
    obs_norm: ObsNormalizer | None
    popart: PopArt | None
    reward_scaler: RewardScaler | None
    carry: State
    num_envs: int
    dead_updates: int = 0
    #: Captured minibatch losses by shape (CUDA); no state.
    graphs: dict[tuple[int, ...], Replayed] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the parameters, which never change."""
        return tuple((name, tuple(parameter.shape)) for name, parameter in self.net.named_parameters())

    @property
    def obs_norm_frozen(self) -> bool:
        """Whether the observation statistics stay as they were calibrated."""
        return self.cfg.obs_norm.sharing == "shared_frozen"

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.flat.data.device

    def refresh_observations(self, raw: Tensor, valid: Tensor) -> None:
        """Merge raw observations [T, E, O] of valid steps [T, E] into the running statistics, after an update."""
        if self.obs_norm is not None and not self.obs_norm_frozen:
            self.obs_norm.update(raw.flatten(0, 1), valid.flatten())

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that a resume needs, under flat names; scalars as float64 tensors."""
        state = {"policy/flat": self.flat.data, "adam/m": self.adam.m, "adam/v": self.adam.v}
        state["learner/counts"] = torch.tensor([self.adam.steps, self.dead_updates], dtype=torch.int64)
        for index, part in enumerate(self.carry):
            state[f"carry/{index}"] = part
        state |= self.normaliser_state()
        if self.reward_scaler is not None:
            state |= {f"reward_norm/{k}": v for k, v in self.reward_scaler.state_dict().items()}
        return state

    def normaliser_state(self) -> dict[str, Tensor]:
        """Return the statistics that belong to the frozen policy."""
        state: dict[str, Tensor] = {}
        if self.obs_norm is not None:
            state |= {f"obs_norm/{k}": v for k, v in self.obs_norm.state_dict().items()}
        if self.popart is not None:
            values = list(self.popart.state_dict().values())
            state["return_norm/mean_std_rounds"] = torch.tensor(values, dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore ``state_dict`` in place; missing or misshapen tensors raise ``ValueError``."""
        expected = self.state_dict()
        for name, tensor in expected.items():
            if name not in state or state[name].shape != tensor.shape:
                found = "missing" if name not in state else tuple(state[name].shape)
                raise ValueError(f"checkpoint tensor {name}: {found}, expected shape {tuple(tensor.shape)}")
        self.flat.data.copy_(state["policy/flat"])
        self.adam.m.copy_(state["adam/m"])
        self.adam.v.copy_(state["adam/v"])
        self.adam.steps, self.dead_updates = (int(n) for n in state["learner/counts"].tolist())
        self.carry = tuple(state[f"carry/{i}"].to(self.device).clone() for i in range(len(self.carry)))
        self.load_normalisers(state)
        if self.reward_scaler is not None:
            self.reward_scaler.load_state_dict(_under(state, "reward_norm/"))

    def load_normalisers(self, state: Mapping[str, Tensor]) -> None:
        """Restore ``normaliser_state``."""
        if self.obs_norm is not None:
            self.obs_norm.load_state_dict(_under(state, "obs_norm/"))
        if self.popart is not None:
            mean, std, rounds = state["return_norm/mean_std_rounds"].tolist()
            self.popart.load_state_dict({"mean": mean, "std": std, "rounds": rounds})

    def hash_into(self, digest: hashlib._Hash) -> None:
        """Feed the name, shape and fingerprint of every tensor of ``state_dict`` to ``digest``."""
        state = sorted(self.state_dict().items())
        prints = torch.stack([fingerprint(tensor).to(self.device) for _, tensor in state]).tolist()
        for (name, tensor), found in zip(state, prints, strict=True):
            digest.update(f"{name}{tuple(tensor.shape)}={found};".encode())


def build_learner(
    cfg: LearnerConfig,
    layout: ObsLayout,
    specs: Sequence[HeadSpec],
    streams: Streams,
    *,
    num_envs: int,
    device: torch.device,
    alike: MutableMapping[Hashable, Learner] | None = None,
) -> Learner:
    """Build a run's policy at round 0; parameters come from stream ``policy_init``, keyed by name.

    Args:
        cfg: of the learner.
        layout: what policies observe.
        specs: heads of the policy.
        streams: keys of the run's draws.
        num_envs: environments it acts in.
        device: where it lives.
        alike: learners that were built for the same layout and heads and are not yet trained, by what their
            parameters depend on: those of an equal one are copied, and this one is added.
    """
    heads = Heads.build(specs, device, squashed=cfg.action_bounds == "tanh")

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return streams.generator("policy_init", parameter=name).standard_normal(shape)

    popart = PopArt() if cfg.return_norm == "popart" else None
    gain = _VALUE_GAIN if popart is None else _VALUE_GAIN_POPART
    alike = {} if alike is None else alike
    key = cfg.net, cfg.action_bounds, gain, streams
    like = alike[key].net if key in alike else None
    net = build_net(cfg.net, layout.inputs, heads, draw, value_gain=gain, like=like)
    flat = flatten(net, device)
    obs_norm = None
    if cfg.obs_norm.enabled:
        obs_norm = ObsNormalizer(layout.continuous.to(device), layout.sentinel.to(device), cfg.obs_norm.clip)
    scaler = RewardScaler(num_envs, cfg.gamma, device) if cfg.reward_norm == "return_std" else None
    learner = Learner(
        cfg=cfg,
        heads=heads,
        net=net,
        flat=flat,
        adam=Adam(torch.zeros_like(flat.data), torch.zeros_like(flat.data)),
        obs_norm=obs_norm,
        popart=popart,
        reward_scaler=scaler,
        carry=net.initial_state(num_envs),
        num_envs=num_envs,
    )
    alike.setdefault(key, learner)
    return learner


def adam_step(flat: FlatParameters, adam: Adam, lr: float, eps: float, scale: float) -> None:
    """One Adam step (Kingma & Ba 2015, algorithm 1) on the flat vector with the gradient times ``scale``."""
    beta1, beta2 = ADAM_BETAS
    adam.steps += 1
    grad = flat.grad if scale == 1.0 else flat.grad.mul_(scale)
    adam.m.lerp_(grad, 1.0 - beta1)
    adam.v.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    spread = adam.v.sqrt().div_(math.sqrt(1.0 - beta2**adam.steps)).add_(eps)
    # as in a stack, FP32: beyond its range infinite, and the policy of no use, where a plain number would be refused
    rate = torch.tensor(-lr / (1.0 - beta1**adam.steps)).item()
    flat.data.addcdiv_(adam.m, spread, value=rate)


def noise_of(
    draw: np.random.Generator, shape: tuple[int, ...], normal_columns: np.ndarray | None
) -> np.ndarray[Any, Any]:
    """Return FP32 noise [.., C] that ``choose`` takes: uniforms, and standard normals in the columns so marked."""
    if normal_columns is None:
        return draw.random(shape, dtype=np.float32) * np.float32(BELOW_ONE)
    noise = np.empty(shape, dtype=np.float32)
    normal = int(normal_columns.sum())
    lead, uniform = shape[:-1], shape[-1] - normal
    noise[..., ~normal_columns] = draw.random((*lead, uniform), dtype=np.float32) * np.float32(BELOW_ONE)
    noise[..., normal_columns] = draw.standard_normal((*lead, normal), dtype=np.float32)
    return noise


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
