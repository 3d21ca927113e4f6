"""One flat buffer per network: parameters, momenta and buffers at fixed addresses.

A network is described by a module on the meta device (no storage, no draw from a global generator)
and then given storage here: every parameter becomes a view of one flat tensor, so that clipping,
SGD, snapshots and in-place re-initialisation are a few operations on one tensor. Axis: P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Init:
    """How a tensor begins: offset + uniform(-bound, bound) + normal(0, std^2)."""

    offset: float = 0.0
    bound: float = 0.0
    std: float = 0.0


def default_init(module: nn.Module) -> dict[str, Init]:
    """Return PyTorch's ordinary initialisation of the layers used here, by parameter name.

    Linear and convolution: U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weight and bias. Norms: 1 and 0.
    """
    found: dict[str, Init] = {}
    for prefix, layer in module.named_modules():
        for name, param in layer.named_parameters(recurse=False):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                fan_in = math.prod(layer.weight.shape[1:])
                init = Init(bound=1.0 / math.sqrt(fan_in))
            else:
                init = Init(offset=1.0 if name == "weight" else 0.0)
            if param.requires_grad:
                found[f"{prefix}.{name}" if prefix else name] = init
    return found


class ParamStore:
    """Storage of a module's parameters and buffers.

    Attributes:
        flat: [P] parameters; every module parameter is a view of it.
        momentum: [P] SGD momentum, or first moment of AdamW.
        second: [P] second moment, empty for SGD.
        grad: [P] gradient of the last step, before clipping.
        steps: scalar, optimiser steps taken.
        decays: [P] bool, elements of tensors with more than one dimension.
        buffers: flat running statistics, or empty.
    """

    def __init__(
        self,
        module: nn.Module,
        inits: Mapping[str, Init],
        *,
        adam: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        named = dict(module.named_parameters())
        if set(named) != set(inits):
            raise ValueError(f"initialisation and parameters differ: {sorted(set(named) ^ set(inits))}")
        self.module = module
        self.size = sum(param.numel() for param in named.values())
        self.flat = torch.zeros(self.size, dtype=dtype, device=device)
        self.momentum = torch.zeros_like(self.flat)
        self.second = torch.zeros_like(self.flat) if adam else self.flat.new_zeros(0)
        self.grad = torch.zeros_like(self.flat)
        self.steps = torch.zeros((), dtype=dtype, device=device)
        self.decays = torch.zeros(self.size, dtype=torch.bool, device=device)
        self.names: list[str] = []
        self.params: list[nn.Parameter] = []
        self._draws = np.zeros((3, self.size), dtype=np.float32)
        self._install_params(named, inits)
        self.buffers, self._buffer_start = self._install_buffers(dtype, device)

    def initialise(self, generator: np.random.Generator) -> None:
        """Re-initialise parameters, buffers and optimiser state in place from a keyed generator."""
        offset, bound, std = self._draws
        values = offset.copy()
        if bound.any():
            values += bound * (2.0 * generator.random(self.size, dtype=np.float32) - 1.0)
        if std.any():
            values += std * generator.standard_normal(self.size, dtype=np.float32)
        self.flat.copy_(torch.from_numpy(values))
        self.buffers.copy_(self._buffer_start)
        self.clear_optimiser()

    def clear_optimiser(self) -> None:
        """Zero momenta and the step count."""
        self.momentum.zero_()
        self.second.zero_()
        self.steps.zero_()

    def state(self) -> list[Tensor]:
        """Return every tensor that a training step writes."""
        return [self.flat, self.momentum, self.second, self.steps, self.grad, self.buffers]

    def snapshot(self) -> tuple[Tensor, Tensor]:
        """Return copies of parameters and buffers."""
        return self.flat.clone(), self.buffers.clone()

    def restore(self, snapshot: tuple[Tensor, Tensor]) -> None:
        """Put a snapshot back bit-exactly and clear all optimiser state."""
        self.flat.copy_(snapshot[0])
        self.buffers.copy_(snapshot[1])
        self.clear_optimiser()

    def _install_params(self, named: Mapping[str, nn.Parameter], inits: Mapping[str, Init]) -> None:
        start = 0
        for name, param in named.items():
            stop = start + param.numel()
            view = nn.Parameter(self.flat[start:stop].view(param.shape))
            _assign(self.module, name, view)
            init = inits[name]
            self._draws[:, start:stop] = np.array([[init.offset], [init.bound], [init.std]])
            self.decays[start:stop] = param.ndim > 1
            self.names.append(name)
            self.params.append(view)
            start = stop

    def _install_buffers(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        named = dict(self.module.named_buffers())
        sizes = [buffer.numel() for buffer in named.values()]
        flat = torch.zeros(sum(sizes), dtype=dtype, device=device)
        start = 0
        for (name, buffer), size in zip(named.items(), sizes, strict=True):
            view = flat[start : start + size].view(buffer.shape)
            view.fill_(1.0 if name.endswith("var") else 0.0)
            _assign(self.module, name, view)
            start += size
        return flat, flat.clone()


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    target = module.get_submodule(owner) if owner else module
    if isinstance(value, nn.Parameter):
        target._parameters[leaf] = value
    else:
        target._buffers[leaf] = value
