"""A function of tensors as one CUDA graph: captured once, replayed on new inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from worker.rl.copying import copy_each


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
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._outputs = function(self._inputs)
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for new inputs; the next call overwrites them."""
        copy_each(self._inputs, inputs)
        self._graph.replay()
        return self._outputs
