"""CIFAR-shaped images that can be learnt without CIFAR-10 itself: gratings at 32 x 32, in its own binary format.

``write_gratings``: the class is the steepness of the stripes (five angles between level and upright) and their
spacing. Whether they rise or fall is drawn, so that the random flips of CIFAR's augmentation leave every label true.
The small host reaches 99.9 %: data for timing and precision, without headroom.

``write_pairs``: which textures stand above each other, for headroom. An image is a grid of 4 x 4 cells of 8 pixels;
every column holds two patches of a grating and is blank elsewhere. Of five textures one is missing: of the other
four, a and b (taken in turn after the missing one) stand on top in two columns each, c and d below. The class is the
missing texture and the pairing: a over c and b over d, or a over d and b over c. Flips and CIFAR's crops of 4 pixels
change neither. Every other count (textures, rows, columns) is the same in both pairings, so that only a unit which
sees both ends of a column can tell them apart. In near images the patches touch; in far ones 16 blank pixels lie
between, and a unit of the host of ``cifar_baseline`` sees 22 pixels, that is at most 6 of the 16 that carry texture:
measured, 50 %. Grafts widen what it sees (to 48 pixels with two 3 x 3 convolutions in the last two slots and one in
the first). Dials: the share of far images, which stops the host alone at about 100 - far / 2 percent, and the noise,
which sets how long learning takes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.keys import generator
from worker.envs.morph.task import cifar

FAR, PAIR_NOISE = 0.7, 0.1
_CELLS, _EDGE, _BLANK = 4, 8, -1
#: Per texture: angle of the stripes' normal against the vertical (level, slanted, upright), and period in pixels.
_ANGLES = np.array([0.0, np.pi / 4, np.pi / 2, 0.0, np.pi / 2])
_PERIODS = np.array([3.2, 3.2, 3.2, 6.4, 6.4])

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def write_gratings(folder: Path, noise: float = 0.5) -> None:
    """Write 60,000 3x32x32 gratings in CIFAR-10's format; ``noise`` is a standard deviation, white being 1."""
    v, u = np.meshgrid(*[(np.arange(32) + 0.5) / 32] * 2, indexing="ij")

    def paint(draw: np.random.Generator, labels: Ints) -> Floats:
        steepness = np.pi / 2 * (labels % 5) / 4 + draw.normal(0.0, 0.05, cifar.RECORDS)
        angle = np.where(draw.random(cifar.RECORDS) < 0.5, steepness, -steepness)
        along = u * np.cos(angle)[:, None, None] + v * np.sin(angle)[:, None, None]
        turns = np.where(labels < 5, 3.0, 6.0)[:, None, None] * along + draw.random((cifar.RECORDS, 1, 1))
        grain = draw.standard_normal((cifar.RECORDS, 3, 32, 32), dtype=np.float32)
        images: Floats = 0.5 + 0.25 * np.cos(2.0 * np.pi * turns)[:, None] + noise * grain
        return images

    _write(folder, "gratings", paint)


def write_pairs(folder: Path, far: float = FAR, noise: float = PAIR_NOISE) -> None:
    """Write 60,000 3x32x32 images of paired gratings in CIFAR-10's format.

    Args:
        folder: where the six files go.
        far: share of images whose pairs lie 16 pixels apart, 0 to 1.
        noise: standard deviation of a pixel, white being 1.
    """

    def paint(draw: np.random.Generator, labels: Ints) -> Floats:
        images = patches(draw, layout(draw, labels, far))
        gain = draw.uniform(0.5, 1.0, (len(labels), 3, 1, 1)).astype(np.float32)
        grain = draw.standard_normal((len(labels), 3, 32, 32), dtype=np.float32)
        return 0.5 + gain * images[:, None] + np.float32(noise) * grain

    _write(folder, "pairs", paint)


def layout(draw: np.random.Generator, labels: Ints, far: float) -> Ints:
    """Return the texture of every cell [B, column, row], -1 where it is blank; labels [B] in 0..9."""
    missing, swapped = labels[:, None] % 5, labels[:, None] // 5
    second = draw.random((len(labels), _CELLS)).argsort(axis=1) % 2
    top = (missing + 1 + second) % 5
    below = (missing + 3 + (second ^ swapped)) % 5
    distance = np.where(draw.random((len(labels), 1)) < far, _CELLS - 1, 1)
    start = (draw.random((len(labels), _CELLS)) * (_CELLS - distance)).astype(np.int64)
    cells = np.full((len(labels), _CELLS, _CELLS), _BLANK)
    where = np.arange(len(labels))[:, None], np.arange(_CELLS)[None]
    cells[(*where, start)], cells[(*where, start + distance)] = top, below
    return cells


def patches(draw: np.random.Generator, cells: Ints) -> Floats:
    """Return images [B, 32, 32] of mean 0: a grating of drawn contrast, phase, angle and period in every cell."""
    steep = _ANGLES[cells] * np.where(draw.random(cells.shape) < 0.5, 1.0, -1.0) + draw.normal(0.0, 0.08, cells.shape)
    cycles = np.exp(draw.normal(0.0, 0.06, cells.shape)) / _PERIODS[cells]
    contrast = draw.uniform(0.15, 0.35, cells.shape) * (cells != _BLANK)
    v, u = np.meshgrid(*[np.arange(_EDGE)] * 2, indexing="ij")
    wide = (..., None, None)
    along = np.sin(steep)[wide] * u + np.cos(steep)[wide] * v
    turns = cycles[wide] * along + draw.random(cells.shape)[wide]
    images = (contrast[wide] * np.cos(2.0 * np.pi * turns)).astype(np.float32)
    # [B, column, row, y, x] -> [B, row, y, column, x]
    grid: Floats = images.transpose(0, 2, 3, 1, 4).reshape(len(cells), 32, 32)
    return grid


def _write(folder: Path, name: str, paint: Callable[[np.random.Generator, Ints], Floats]) -> None:
    """Write the six files from images [B, 3, 32, 32] in 0..1 that ``paint`` makes of balanced labels [B]."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = generator(20_261, "val_subset", dataset=name)
    for member in cifar.MEMBERS:
        labels = draw.permutation(np.arange(cifar.RECORDS) % 10)
        images = paint(draw, labels)
        pixels = (images.clip(0.0, 1.0) * 255.0).astype(np.uint8).reshape(cifar.RECORDS, -1)
        (folder / member).write_bytes(np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tobytes())
