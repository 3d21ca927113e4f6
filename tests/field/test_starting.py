"""Starting where the disk is full or read-only, where another user owns the files, and where nothing answers.

Processes of the real command, each in a mount namespace of its own where a disk is needed.
"""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

import worker.__main__ as worker_command
from app.cli import admin
from app.store.database import opening
from tests.conftest import LiveServer
from tests.factories import tiny_spec
from tests.forks import in_a_process
from worker.supervision.control import Control
from worker.supervision.devices import HostLock

ROOT = Path(__file__).parents[2]
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
OTHER = 12_345  # a user that owns nothing here


def as_user(number: int, act: Callable[[], object]) -> str:
    """Act as another user; return what it says where it cannot."""

    def change() -> object:
        os.setgid(number)
        os.setuid(number)
        return act()

    return in_a_process(change)


def on_a_disk(folder: Path, options: str, act: Callable[[], object]) -> str:
    """Act beside a small disk that is mounted on a folder for this alone; return what it says where it cannot."""
    user = os.geteuid()

    def mount() -> object:
        flags = _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)
        assert ctypes.CDLL(None, use_errno=True).unshare(flags) == 0, os.strerror(ctypes.get_errno())
        if user:
            Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
        return act()

    return in_a_process(mount)


def command(words: list[str], folder: Path) -> None:
    """Run a command of the server whose data lie in a folder."""
    os.environ["LOCKSTEP_DATA_DIR"] = str(folder)
    admin.app(words)


@pytest.mark.parametrize(
    ("options", "words", "said"),
    [
        ("size=32k", ["serve", "--port", "0"], "No space left on device); make room on its disk"),
        ("ro", ["token", "list"], "lies on a file system that is mounted read-only; mount it for writing"),
    ],
    ids=["full", "ro"],
)
def test_a_full_and_a_read_only_disk_are_told(tmp_path: Path, options: str, words: list[str], said: str) -> None:
    told = on_a_disk(tmp_path, options, lambda: command(words, tmp_path)).splitlines()
    assert said in told[0]
    assert "LOCKSTEP_DATA_DIR" in told[0]
    assert told[1:] == ["SystemExit: 3"]


def test_a_full_disk_of_the_worker_is_told(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--work-dir", str(tmp_path)]
    told = on_a_disk(tmp_path, "size=32k", lambda: sys.exit(worker_command.run(words))).splitlines()
    assert "No space left on device); correct its rights, make room, or choose another with --work-dir" in told[0]
    assert told[1:] == ["SystemExit: 3"]


def let_everyone_reach(folder: Path) -> None:
    """Give every user the right to pass to a folder of this run; some lie deeper, beside those of other processes."""
    for place in (folder, *folder.parents):
        if place == folder or place.name.startswith(("pytest-", "popen-")):
            place.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may act as another user")
def test_files_of_another_user_are_told_and_the_superuser_makes_none(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, OTHER, OTHER)
    assert in_a_process(lambda: command(["token", "create", "--name", "x"], data)) == "SystemExit: 0\n"
    owners = {path.name: path.stat().st_uid for path in data.rglob("*")}
    assert owners["lockstep.db"] == owners["files"] == owners["incoming"] == OTHER
    assert set(owners.values()) == {OTHER}
    tmp_path.chmod(0o700)
    told = as_user(OTHER, lambda: opening.connect(f"sqlite:///{data / 'lockstep.db'}"))
    assert "cannot be reached (Permission denied); correct the rights on the way" in told
    let_everyone_reach(tmp_path)
    os.chown(data / "lockstep.db", 0, 0)
    (data / "lockstep.db").chmod(0o600)
    told = as_user(OTHER, lambda: opening.connect(f"sqlite:///{data / 'lockstep.db'}"))
    assert "lockstep.db belongs to user root and is not writable for this process; run as that user" in told
    data.chmod(0o555)
    told = as_user(OTHER + 1, lambda: opening.connect(f"sqlite:///{data / 'lockstep.db'}"))
    assert f"{data} belongs to user number {OTHER} and is not writable for this process" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may act as another user")
def test_workers_of_every_user_share_the_folder_of_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_everyone_reach(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.umask(0o077)
    HostLock.take("cpu:h:0").release()
    os.umask(before)
    assert as_user(OTHER, lambda: HostLock.take("cpu:h:0")) == ""
    assert as_user(OTHER, lambda: HostLock.take("cpu:h:1")) == ""
    assert (tmp_path / "lockstep-locks" / "cpu_h_1.lock").stat().st_uid == OTHER


def test_a_worker_says_every_minute_why_its_server_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minutes = iter([0.0, 30.0, 61.0, 100.0, 122.0])
    monkeypatch.setattr("worker.supervision.control.time.monotonic", lambda: next(minutes))
    control = Control("http://ann:secret@lab.invalid", None)
    for _ in range(5):
        control.tell(httpx.ConnectError("[Errno -2] Name or service not known"))
    control.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert set(said) == {
        "no answer from http://ann:***@lab.invalid (ConnectError [Errno -2] Name or service not known); "
        "trying again until it answers"
    }


@pytest.mark.server
def test_text_is_read_and_written_whatever_the_locale(sqlite_server: LiveServer, tmp_path: Path) -> None:
    spec = tmp_path / "größe.yaml"
    name = "Größe λ 🎲"
    spec.write_text(yaml.safe_dump(tiny_spec(experiment={"name": name}), allow_unicode=True), encoding="utf-8")
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "LOCKSTEP_URL": sqlite_server.url}
    for words in (["submit", str(spec)], ["list"]):
        ended = subprocess.run(
            [sys.executable, "-m", "app.cli", *words], capture_output=True, env=latin, check=False, cwd=ROOT
        )
        assert ended.returncode == 0, ended.stderr
    assert "Größe \\u03bb \\U0001f3b2" in ended.stdout.decode("latin-1")


def test_no_file_is_read_or_written_in_the_encoding_of_the_locale() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("app", "lockstep", "worker")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _takes_the_locale(node)
    ]
    assert found == []


def _takes_the_locale(call: ast.Call) -> bool:
    """Whether a call opens text without naming its encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if name in ("read_text", "write_text") and "distribution" not in ast.unparse(call.func).lower():
        return True
    place = 0 if isinstance(call.func, ast.Attribute) else 1  # path.open(mode), open(path, mode)
    is_os = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in (
        "os",
        "tarfile",
        "Image",
        "webbrowser",
    )
    if name != "open" or is_os:
        return False
    modes = [*call.args[place:], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return bool(texts) and "b" not in texts[0] if modes else bool(call.keywords)
