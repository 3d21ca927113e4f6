"""How a stream is captured in a CUDA graph."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **how: Any) -> Iterator[None]:
    """Capture what the current stream is given.

    The collector of cycles waits: an engine of the past that it found would give back memory, events and graphs
    while a stream is captured, which ends the capture.

    Args:
        graph: what it is captured in.
        how: for ``capture_begin``.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        graph.capture_begin(capture_error_mode="thread_local", **how)
        try:
            yield
        finally:
            graph.capture_end()
    finally:
        if collects:
            gc.enable()
