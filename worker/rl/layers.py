"""Layers built without values: the default initialisers draw from the global generator."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

LayerT = TypeVar("LayerT", bound=nn.Module)


class LSTM(nn.LSTM):
    """An LSTM whose parameters stay where they are put.

    PyTorch would lay them into a buffer of cuDNN's at the first forward on a GPU. The network would then read that
    copy, while the optimiser changes the flat vector of the run, and the LSTM would never learn.
    """

    def flatten_parameters(self) -> None:
        """Do nothing; cuDNN copies the parameters at each call instead."""


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer whose parameters hold no values yet."""
    return with_memory(nn.Linear(inputs, outputs, device="meta"))


def with_memory(layer: LayerT) -> LayerT:
    """Give a layer built on the meta device parameters without values.

    ``Module.to_empty`` does the same, and imports a computer algebra system (1.3 s) for it.
    """
    for name, parameter in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layer
