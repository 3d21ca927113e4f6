"""The whole trainer learns CartPole: the small version of ``benchmarks/gym_classic.py`` (training.md 8.5)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Whether a fifth of the training suffices depends on rounding, and rounding on the processor's widest instructions:
#: the least that every processor has gives one answer everywhere.
_SAME_EVERYWHERE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@pytest.mark.parametrize("seed", [2, 3])
def test_cartpole_is_learnt_in_100_000_steps(seed: int) -> None:
    command = [sys.executable, "-m", "tests.worker.train.cartpole", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **_SAME_EVERYWHERE}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) >= 300
