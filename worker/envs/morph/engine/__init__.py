"""Issues training and validation of the networks of a step, eager or captured."""

from __future__ import annotations

from typing import Literal

import torch

from worker.envs.morph.engine.captured import CapturedEngine
from worker.envs.morph.engine.eager import Engine, StepEngine
from worker.envs.morph.task.data import TrainingData

Path = Literal["eager", "captured", "fused"]


def make_engine(path: Path, precision: Literal["fp32", "bf16"], data: TrainingData, device: torch.device) -> StepEngine:
    """Return the engine of a path; ``fused`` is captured too, with other kernels in its networks."""
    return Engine(precision, data, device) if path == "eager" else CapturedEngine(precision, data, device)
