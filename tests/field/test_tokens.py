"""A worker's token as a file of secrets has it: taken, never printed, and where it is no use that is said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.services import access
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL
from tests.field.conftest import StartLight
from worker.supervision.agent import CONFIGURATION, TOKEN_REFUSED

pytestmark = [pytest.mark.server, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]


@pytest.fixture
def guarded(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    return make_server(database_url, auth="token")


def secret_file(folder: Path, text: str) -> Path:
    path = folder / "token"
    path.write_text(text)
    return path


def ended(server: LiveServer, folder: Path, token: str) -> subprocess.CompletedProcess[str]:
    """Run a worker with this file of a token to its end."""
    command = [sys.executable, "-m", "worker", "--api", server.url, "--device", "cpu"]
    command += ["--token-file", str(secret_file(folder, token)), "--work-dir", str(folder / "work")]
    environment = {**os.environ, "LOCKSTEP_LOCK_DIR": str(folder / "locks")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_token_with_a_line_break_is_taken_and_a_refused_heartbeat_is_logged(
    guarded: LiveServer, light_worker: StartLight
) -> None:
    made = access.create(guarded.ctx, "box", "worker", None, LOCAL)
    reader = access.create(guarded.ctx, "eye", "viewer", None, LOCAL).secret
    worker = light_worker(guarded.url, LOCKSTEP_TOKEN=f"{made.secret}\r\n")

    def statuses() -> list[str]:
        answer = httpx.get(f"{guarded.url}/api/v1/workers", headers={"Authorization": f"Bearer {reader}"})
        return [item["status"] for item in answer.json()["items"]]

    wait_until(lambda: statuses() == ["idle"], what="an idle worker")
    access.revoke(guarded.ctx, made.id, LOCAL)
    wait_until(lambda: "heartbeat_refused" in worker.log.read_text(), what="word of the refused heartbeat")
    said = worker.log.read_text()
    assert "401" in said
    assert made.secret not in said


@pytest.mark.parametrize(
    ("token", "code", "said"),
    [
        ("no-such-token\n", TOKEN_REFUSED, "refused: "),
        ("two\nlines\n", CONFIGURATION, "the token has a blank, a line break"),
        ("\n", CONFIGURATION, "the file is empty"),
    ],
)
def test_token_that_is_no_use_ends_the_worker_with_its_code_and_one_sentence(
    guarded: LiveServer, tmp_path: Path, token: str, code: int, said: str
) -> None:
    result = ended(guarded, tmp_path, token)
    assert result.returncode == code
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not any(word in result.stderr + result.stdout for word in ("no-such-token", "two", "lines"))


def test_token_of_another_role_is_refused_by_name(guarded: LiveServer, tmp_path: Path) -> None:
    result = ended(guarded, tmp_path, access.create(guarded.ctx, "eye", "viewer", None, LOCAL).secret)
    assert result.returncode == TOKEN_REFUSED
    assert result.stderr == "refused: role viewer lacks the right to work\n"
