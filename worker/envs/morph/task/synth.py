"""Procedural gratings: a learnable offline image task that no linear classifier solves.

Generated from a fixed dataset key, the same everywhere and for every replicate (environment.md 5.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lockstep import keys

SIZES = {"train": 4096, "val": 1024, "test": 1024}
_DATASET_SEED, _EDGE, _CLASSES = 20260101, 16, 10
SIGMA = 1.0


def generate(split: str, count: int, sigma: float = SIGMA) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return images [N, 3, 16, 16] and labels [N], classes balanced to within one."""
    draw = keys.generator(_DATASET_SEED, "val_subset", dataset="synth", split=split)
    labels = draw.permutation(np.arange(count) % _CLASSES)
    # theta = pi o / 5 + N(0, 0.1^2), o = y mod 5; frequency 2 for y < 5, else 4
    theta = np.pi * (labels % 5) / 5 + draw.normal(0.0, 0.1, count)
    frequency = np.where(labels < 5, 2.0, 4.0)
    phase = draw.uniform(0.0, 2.0 * np.pi, count)
    gain = draw.uniform(0.5, 1.0, (count, 3))
    centre = (np.arange(_EDGE) + 0.5) / _EDGE
    v, u = np.meshgrid(centre, centre, indexing="ij")
    along = u * np.cos(theta)[:, None, None] + v * np.sin(theta)[:, None, None]
    wave = np.cos(2.0 * np.pi * frequency[:, None, None] * along + phase[:, None, None])
    images = 0.5 + 0.35 * gain[:, :, None, None] * wave[:, None]
    images = images + draw.normal(0.0, sigma, images.shape)
    return images.astype(np.float32), labels.astype(np.uint8)
