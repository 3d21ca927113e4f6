"""A function of tensors as one CUDA graph: captured once, replayed on new inputs.

The one factory of autocast contexts: rollout, bootstrap, anchor, update and evaluation share it.

A 64-bit fingerprint of a tensor's bits, computed where the tensor lies.

Two tensors with one differing bit differ in it; others that differ agree with probability 2^-64. It is a sum of
integer products, so neither the order of addition nor the device changes it. (A cryptographic hash of a policy and
its optimiser would take longer than the policy's update.)

Copies of many small tensors: on a device one kernel for each dtype instead of one for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from worker.capturing import capturing

#: Largest |anchor - rollout| log-prob gap by where and how the numbers were made (training.md 1.11).
_ANCHOR_LIMITS = {"bf16": 3e-2, "cpu": 1e-5, "cuda": 1e-4}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which a policy network runs; ``precision`` is ``fp32`` or ``bf16``."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def anchor_limit(device: torch.device, precision: str) -> float:
    """Return the largest log-probability gap between rollout and sequence path that is noise."""
    return _ANCHOR_LIMITS["bf16" if precision == "bf16" else device.type]


ResultT = TypeVar("ResultT")

_COLUMNS = 4096
#: Weyl's sequence by the golden ratio, and the multiplier of its mixing (Steele et al. 2014, SplitMix64).
_STEP, _MIX = -0x61C8864680B583EB, -0x40A7B892E31B1A47
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> Tensor:
    """Return the fingerprint of the bits of a tensor, [] int64 on its device; its shape does not enter."""
    bits = tensor.detach().contiguous().flatten()
    bits = bits.view(_BITS[bits.element_size()])
    return (bits * _weights_of(len(bits), tensor.device)).sum()


@lru_cache(maxsize=64)
def _weights_of(count: int, device: torch.device) -> Tensor:
    """Return what each of ``count`` elements is multiplied with: the weights of its row and its column."""
    rows = _weights(-(-count // _COLUMNS), device).unsqueeze(1)
    return (rows * _weights(_COLUMNS, device)).flatten()[:count].clone()


def _weights(count: int, device: torch.device) -> Tensor:
    """Return odd pseudo-random weights [count] int64: a change of one element changes every sum it enters."""
    mixed = torch.arange(1, count + 1, device=device) * _STEP
    mixed = (mixed ^ (mixed >> 30)) * _MIX
    return (mixed ^ (mixed >> 27)) | 1


def copy_each(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy every value into its place; both have the same shapes and dtypes."""
    for dtype in dict.fromkeys(place.dtype for place in into):
        places = [place for place in into if place.dtype is dtype]
        torch._foreach_copy_(places, [value for value in values if value.dtype is dtype])


def side_by_side(works: Sequence[Callable[[], ResultT]], device: torch.device) -> list[ResultT]:
    """Return what each work gives; on CUDA each runs on a stream of its own, and what follows waits for all.

    Their results are to be kept until what follows has read them: memory of a stream may be given out again on it.
    """
    if device.type != "cuda":
        return [work() for work in works]
    own = torch.cuda.current_stream(device)
    others = [torch.cuda.Stream(device, priority=-1) for _ in works[1:]]  # type: ignore[no-untyped-call]
    found = []
    for stream, work in zip([own, *others], works, strict=True):
        stream.wait_stream(own)
        with torch.cuda.stream(stream):
            found.append(work())
    for stream in others:
        own.wait_stream(stream)
    return found


class Replayed:
    """A captured function.

    What it reads besides its inputs (weights) is read at its address, so updates in place are seen.

    Args:
        function: inputs to outputs; it runs once before it is captured, so it must not train.
        inputs: an example; shapes and dtypes are fixed by it.
    """

    def __init__(self, function: Callable[[list[Tensor]], list[Tensor]], inputs: Sequence[Tensor]) -> None:
        self._inputs = [tensor.detach().clone() for tensor in inputs]
        device = self._inputs[0].device
        # what is captured here goes before the hosts' training, which fills the device for long
        stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            function(self._inputs)
            stream.synchronize()
            with capturing(self._graph):
                self._outputs = function(self._inputs)
        torch.cuda.current_stream(device).wait_stream(stream)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for new inputs; the next call overwrites them."""
        copy_each(self._inputs, inputs)
        self._graph.replay()
        return self._outputs
