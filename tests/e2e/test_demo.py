"""`lockstep demo`: its port is the one that it could bind, and all of its workers train."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.factories import cartpole_spec

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
ROOT = Path(__file__).parents[2]


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    spec = folder / "spec.yaml"
    analysis = {"inference": "none", "failure": {"floor": 0.0}}
    spec.write_text(yaml.safe_dump(cartpole_spec(experiment={"replicates": 2}, analysis=analysis)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    environment |= {"LOCKSTEP_DATA_DIR": str(folder)}
    command = [sys.executable, "-m", "app.cli", "demo", "--spec", str(spec), *options]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def usual_port_taken() -> Iterator[None]:
    """Somebody listens on 7480: this test, or whoever did before it."""
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 7480))
            taken.listen()
        except OSError:
            pass
        yield


@pytest.mark.usefixtures("usual_port_taken")
def test_where_the_usual_port_is_taken_it_binds_a_free_one_and_both_workers_train(tmp_path: Path) -> None:
    ended = demo(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("server at http://127.0.0.1:")
    assert ":7480" not in ended.stdout
    assert "\nVerdict: " in ended.stdout
    with sqlite3.connect(tmp_path / "lockstep.db") as store:
        devices = store.execute("SELECT DISTINCT device_uid FROM assignment").fetchall()
    assert len(devices) == 2


def test_a_port_that_was_asked_for_and_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = demo(tmp_path, "--port", str(port))
    assert (ended.returncode, ended.stdout) == (3, "")
    [told] = ended.stderr.splitlines()
    assert told.startswith(f"error: cannot listen on 127.0.0.1:{port} (Address already in use); choose another with ")
