"""CIFAR-shaped images that can be learnt without CIFAR-10 itself: noisy gratings at 32 x 32.

The class is the steepness of the stripes (five angles between level and upright) and their spacing. Whether they
rise or fall is drawn, so that the random flips of CIFAR's augmentation leave every label true.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from worker.envs.morph import cifar
from worker.keys import generator


def write_gratings(folder: Path, noise: float = 0.5) -> None:
    """Write 60,000 3x32x32 gratings in CIFAR-10's format; ``noise`` is a standard deviation, white being 1."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = generator(20_261, "val_subset", dataset="gratings")
    v, u = np.meshgrid(*[(np.arange(32) + 0.5) / 32] * 2, indexing="ij")
    for name in cifar.MEMBERS:
        labels = draw.permutation(np.arange(cifar.RECORDS) % 10)
        steepness = np.pi / 2 * (labels % 5) / 4 + draw.normal(0.0, 0.05, cifar.RECORDS)
        angle = np.where(draw.random(cifar.RECORDS) < 0.5, steepness, -steepness)
        along = u * np.cos(angle)[:, None, None] + v * np.sin(angle)[:, None, None]
        turns = np.where(labels < 5, 3.0, 6.0)[:, None, None] * along + draw.random((cifar.RECORDS, 1, 1))
        grain = draw.standard_normal((cifar.RECORDS, 3, 32, 32), dtype=np.float32)
        images = 0.5 + 0.25 * np.cos(2.0 * np.pi * turns)[:, None] + noise * grain
        pixels = (images.clip(0.0, 1.0) * 255.0).astype(np.uint8).reshape(cifar.RECORDS, -1)
        (folder / name).write_bytes(np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tobytes())
