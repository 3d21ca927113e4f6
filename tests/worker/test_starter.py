"""Processes that train: forked from a server that has imported, or another program; ends, deaths and refusals."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import wait_until
from worker import child
from worker.supervision import supervisor
from worker.supervision.starter import SERVER_NAME, TRAINING_NAME, CannotStart, ForkServer, Starter
from worker.supervision.supervisor import Child, descendants

ROOT = Path(__file__).parents[2]
#: What a block does before its first round must find everything imported; no device may have been touched.
_LOOK = """
import sys
from worker import numerics
from worker.child import preload
from worker.envs.families import FAMILIES
preload()
import torch
print(torch.cuda.is_initialized(), set(FAMILIES.values()) <= set(sys.modules))
from tests.worker.train import cases
before = set(sys.modules)
numerics.set_up(deterministic=True, tf32=False, threads=1)
cases.train(cases.block(cases.MORPH, cases.MORPH_ARMS))
print({name.partition(".")[0] for name in set(sys.modules) - before})
"""
#: Prints its pid and that of a grandchild in a session of its own; both ignore SIGTERM.
_FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import time; time.sleep(600)"
print(os.getpid(), subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid, flush=True)
time.sleep(600)
"""


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.fixture(autouse=True)
def _adopting() -> Iterator[None]:
    """Adopt what a fork server forks, as a supervisor does."""
    supervisor.become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server, for all tests of this file: its imports take seconds."""
    made = ForkServer({"OMP_NUM_THREADS": "1"}, tmp_path_factory.mktemp("fork") / "log", stopped=lambda: False)
    yield made
    made.end()
    assert not [pid for pid in descendants(os.getpid()) if name_of(pid) == SERVER_NAME]


@pytest.mark.parametrize("name", child._PRELOADED)
def test_preloaded_module_is_there(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_preload_imports_all_a_block_needs_and_touches_no_device() -> None:
    seen = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True, cwd=ROOT)
    assert seen.stdout.splitlines() == ["False True", "set()"]


def test_forks_are_ours_and_tell_how_they_ended(server: ForkServer) -> None:
    first, second = Child(server.train), Child(server.train)
    for made in (first, second):
        assert int(Path(f"/proc/{made.process.pid}/stat").read_text().split()[3]) == os.getpid()
        assert os.getsid(made.process.pid) == made.process.pid
        wait_until(partial(name_is, made.process.pid, TRAINING_NAME), what="the name of a fork")
    os.kill(second.process.pid, signal.SIGKILL)
    assert second.process.wait(60) == -signal.SIGKILL
    first.kill()  # reaps whatever else has ended
    assert (first.exit_text(), second.exit_text()) == ("killed by SIGKILL",) * 2
    for made in (first, second):
        made.close()


def name_is(pid: int, name: str) -> bool:
    return name_of(pid) == name


def test_fork_without_an_assignment_ends_when_the_supervisor_closes_its_pipe(server: ForkServer) -> None:
    made = Child(server.train)
    made._commands.close()
    assert made.process.wait(60) == 0
    made.close()


def test_dead_server_is_replaced_and_its_forks_go_on(server: ForkServer) -> None:
    before = Child(server.train)
    (pid,) = [pid for pid in descendants(os.getpid()) if name_of(pid) == SERVER_NAME]
    os.kill(pid, signal.SIGKILL)
    after = Child(server.train)
    assert before.is_alive()
    assert after.is_alive()
    for made in (before, after):
        made.close()
    (fresh,) = [pid for pid in descendants(os.getpid()) if name_of(pid) == SERVER_NAME]
    assert fresh != pid


def test_server_that_cannot_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = ForkServer({}, tmp_path / "log", stopped=lambda: False)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CannotStart, match=r"the trainer cannot be loaded: [\s\S]*libcudart\.so is missing"):
        Child(broken.train)
    assert len(os.listdir("/proc/self/fd")) == before


def test_nobody_waits_for_the_imports_of_a_supervisor_that_is_to_end(tmp_path: Path) -> None:
    with pytest.raises(CannotStart):
        ForkServer({}, tmp_path / "log", stopped=lambda: True).tell_capabilities(None, 1, 2)


def test_program_that_cannot_be_started_leaves_no_pipe_open(tmp_path: Path) -> None:
    starter = Starter(["/nowhere/trainer"], {}, tmp_path / "log", stopped=lambda: False)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CannotStart, match="/nowhere/trainer"):
        starter.start()
    assert len(os.listdir("/proc/self/fd")) == before


def test_end_of_a_child_takes_its_detached_family_and_nothing_else(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    supervisor.others.add(other)
    try:
        made = Starter([sys.executable, "-c", _FAMILY], {}, tmp_path / "log", stopped=lambda: False).start()
        family = [int(pid) for pid in made.output.readline().split()]
        made.close()
        assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
        assert other.poll() is None
    finally:
        supervisor.others.discard(other)
        other.kill()
        other.wait()


@pytest.mark.parametrize(("last", "told"), [("os._exit(3)", "exit code 3"), ("time.sleep(600)", "killed by SIGKILL")])
def test_a_process_that_hangs_after_its_last_frame_is_killed(
    monkeypatch: pytest.MonkeyPatch, last: str, told: str
) -> None:
    monkeypatch.setattr(supervisor, "_EXIT_SECONDS", 0.2 if "sleep" in last else 60.0)
    code = f"import os, time; os.close(int(os.environ['LOCKSTEP_FRAMES_FD'])); {last}"
    command = [sys.executable, "-S", "-c", code]
    made = Child(lambda ends: supervisor.spawn(command, {}, ends))
    assert list(made.frames()) == []
    made.join()
    assert made.exit_text() == told
    made.close()
