"""What a spare imports while it waits, and the option that turns it off."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from worker import child
from worker.__main__ import parse
from worker.standby import Starter

#: What a block does before its first round must find everything imported; no device may have been touched.
_LOOK = """
import sys
from worker.child import preload
from worker.envs.families import FAMILIES
preload()
import torch
print(torch.cuda.is_initialized(), set(FAMILIES.values()) <= set(sys.modules))
before = set(sys.modules)
torch.use_deterministic_algorithms(True)
print(set(sys.modules) - before)
"""


@pytest.mark.parametrize("name", child._PRELOADED)
def test_preloaded_module_is_there(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_preload_imports_all_a_block_needs_and_touches_no_device() -> None:
    seen = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    assert seen.stdout.splitlines() == ["False True", "set()"]


def test_a_process_that_cannot_be_started_leaves_no_pipe_open(capsys: pytest.CaptureFixture[str]) -> None:
    starter = Starter(["/nowhere/trainer"], {}, keeps_spare=True)
    before = len(os.listdir("/proc/self/fd"))
    starter.keep()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert starter.take() is None
    assert "no spare training process could be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [([], None, True), (["--no-spare"], None, False), ([], "0", False), (["--spare"], "0", True)],
)
def test_spare_is_kept_unless_turned_off(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], variable: str | None, expected: bool
) -> None:
    monkeypatch.delenv("LOCKSTEP_SPARE", raising=False)
    if variable is not None:
        monkeypatch.setenv("LOCKSTEP_SPARE", variable)
    assert parse(arguments).spare is expected
