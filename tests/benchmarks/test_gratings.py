"""The generated CIFAR-shaped images say their class as documented, and say it nowhere else."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from benchmarks.gratings import Ints, layout, patches, write_pairs
from tests.worker.envs.morph.factories import network
from worker.envs.morph.network.hosts import EVAL
from worker.envs.morph.task import cifar
from worker.envs.morph.task.config import EnvConfig

BLANK = -1


def cells_of(labels: Ints, far: float) -> Ints:
    return layout(np.random.default_rng(5), labels, far)


def label_of(cells: Ints) -> int:
    """Read the class from the cells [column, row] of one image, by the words of the docstring."""
    (missing,) = set(range(5)) - set(cells[cells != BLANK])
    pairs = {tuple(column[column != BLANK]) for column in cells}
    a, b, c, d = (int(missing + turn) % 5 for turn in (1, 2, 3, 4))
    return int(missing + 5 * {frozenset({(a, c), (b, d)}): 0, frozenset({(a, d), (b, c)}): 1}[frozenset(pairs)])


@pytest.mark.parametrize("far", [0.0, 0.5, 1.0])
def test_layout_says_the_class_flipped_or_not(far: float) -> None:
    labels = np.arange(200) % 10
    cells = cells_of(labels, far)
    assert [label_of(one) for one in cells] == list(labels)
    assert [label_of(one[::-1]) for one in cells] == list(labels)


def test_layout_puts_far_pairs_two_blank_cells_apart_and_near_ones_together() -> None:
    for far, apart in ((0.0, 1), (1.0, 3)):
        rows = np.argwhere(cells_of(np.arange(100) % 10, far) != BLANK)[:, 2].reshape(-1, 2)
        assert set(rows[:, 1] - rows[:, 0]) == {apart}


def test_layout_counts_textures_alike_in_every_row_and_column_of_both_pairings() -> None:
    num, count = 40_000, np.zeros((2, 4, 4, 5))
    for swapped in (0, 1):
        cells = cells_of(np.full(num, 2 + 5 * swapped), 0.5)
        for texture in range(5):
            count[swapped, :, :, texture] = (cells == texture).sum(axis=0)
    assert count[:, :, :, 2].max() == 0
    # a count has a standard deviation of at most sqrt(num) / 2 = 100; these differ by less than 5 of them
    assert np.abs(count[0] - count[1]).max() < 5 * 100 * np.sqrt(2)


def test_patches_fill_their_cells_and_leave_blank_ones_flat() -> None:
    cells = cells_of(np.arange(10), 1.0)
    images = patches(np.random.default_rng(6), cells)
    flat = images.reshape(10, 4, 8, 4, 8).std(axis=(2, 4)).transpose(0, 2, 1) < 1e-6
    assert (flat == (cells == BLANK)).all()


def test_a_unit_of_the_small_host_sees_22_rows_so_never_a_whole_far_pair() -> None:
    net = network(EnvConfig.for_task("cifar_baseline"))
    reach = 0
    with torch.no_grad():
        for seed in range(8):
            x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).repeat(33, 1, 1, 1)
            for row in range(32):
                x[row, :, row] += 100.0  # image 32 stays as it is
            maps = net.host.run(x, 0, net.host.num_segments - 1, EVAL)
            moved = (maps[:32] != maps[32]).any(dim=1).any(dim=-1)  # [row changed, row of the map]
            spans = [rows.max() - rows.min() + 1 for rows in (moved[:, y].nonzero() for y in (1, 2))]
            reach = max(reach, *(int(span) for span in spans))
    assert reach == 22
    cells, blank = 8, 16
    assert reach - blank < cells


def test_write_pairs_gives_files_that_read_as_balanced_cifar(tmp_path: Path) -> None:
    with patch.object(cifar, "MEMBERS", cifar.MEMBERS[:1]):
        write_pairs(tmp_path, far=0.7, noise=0.1)
        images, labels = cifar.read(tmp_path)
    assert images.shape == (10_000, 3, 32, 32)
    assert list(np.bincount(labels)) == [1000] * 10
    assert 100 < images.mean() < 150
