"""What happens while a stream is captured; the driver's calls are replaced, so it runs without a GPU."""

from __future__ import annotations

import gc
from typing import Any, cast

import pytest
import torch

from worker.capturing import capturing


class Graph:
    def __init__(self, *, begins: bool = True) -> None:
        self.begins, self.ended = begins, False

    def capture_begin(self, **_: Any) -> None:
        if not self.begins:
            raise RuntimeError("no stream")

    def capture_end(self) -> None:
        self.ended = True


def test_nothing_is_collected_while_a_stream_is_captured() -> None:
    graph = Graph()
    with capturing(cast(torch.cuda.CUDAGraph, graph)):
        assert not gc.isenabled()
    assert graph.ended
    assert gc.isenabled()


@pytest.mark.parametrize("begins", [False, True])
def test_a_capture_that_fails_leaves_the_collector_on(begins: bool) -> None:
    graph = Graph(begins=begins)
    with pytest.raises(RuntimeError), capturing(cast(torch.cuda.CUDAGraph, graph)):
        raise RuntimeError("a kernel")
    assert gc.isenabled()
    assert graph.ended is begins
