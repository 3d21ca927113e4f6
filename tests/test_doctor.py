"""`lockstep doctor` says which database it looked at, and how the server is that commands ask."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.admin import app as command
from app.cli.doctor import _database_lines
from app.services import access
from lockstep.client import Client
from lockstep.revision import code_identity
from tests.conftest import LiveServer
from tests.factories import LOCAL, SimulatedWorker

pytestmark = pytest.mark.server


def doctor(*arguments: str, **settings: str) -> tuple[int, list[str]]:
    environment = {"LOCKSTEP_URL": "", "LOCKSTEP_TOKEN": ""}
    environment |= {f"LOCKSTEP_{name.upper()}": value for name, value in settings.items()}
    found = CliRunner().invoke(command, ["doctor", *arguments], env=environment)
    return found.exit_code, found.stdout.splitlines()


def of_server(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("server") or " there: " in line]


def test_doctor_says_that_the_server_has_the_database_it_looked_at(sqlite_server: LiveServer) -> None:
    code, lines = doctor("--url", sqlite_server.url, database_url=sqlite_server.settings.database_url)
    where = f"server {sqlite_server.url}"
    assert code == 0
    assert of_server(lines) == [
        f"{where} (LOCKSTEP_URL): answers, ready",
        f"{where}: it asks for no token; it is lockstep {code_identity().text}, as here",
        f"{where}: its database is the one above",
    ]
    assert [
        line
        for line in lines
        if line.startswith(f"database of these settings, {sqlite_server.settings.database_url}: ok")
    ]


def test_doctor_beside_a_server_with_a_database_of_its_own_makes_none_and_tells_what_is_amiss_there(
    sqlite_server: LiveServer, tmp_path: Path
) -> None:
    rewards = {"broken": {"schema": {}, "defect": "it raised"}}
    SimulatedWorker(sqlite_server.ctx, "w7", rewards=rewards).register()
    code, lines = doctor(url=sqlite_server.url, data_dir=str(tmp_path / "none"))
    assert code == 0
    assert not (tmp_path / "none").exists()
    assert (
        f"database of these settings, sqlite:///{tmp_path}/none/lockstep.db: not made yet, and not looked at" in lines
    )
    assert f"server {sqlite_server.url}: its database is not the one above" in lines
    assert of_server(lines)[-1].startswith("worker w7 there: reward 'broken' cannot be used: it raised; ")


def test_doctor_says_whether_the_token_is_taken(
    make_server: Callable[..., LiveServer], sqlite_template: Path, tmp_path: Path
) -> None:
    guarded = make_server(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'guarded.db')}", auth="token")
    secret = access.create(guarded.ctx, "mia", "viewer", None, LOCAL).secret
    known = {"url": guarded.url, "database_url": guarded.settings.database_url}
    code, lines = doctor(**known)
    assert code == 1
    assert f"server {guarded.url}: it wants a token: " in of_server(lines)[-1]
    code, lines = doctor(**known, token="lsk_" + "0" * 43)
    assert code == 1
    assert f"server {guarded.url}: the token of LOCKSTEP_TOKEN is not taken: " in of_server(lines)[-1]
    code, lines = doctor(**known, token=secret)
    assert code == 0
    assert f"server {guarded.url}: you are mia, role viewer; " in of_server(lines)[1]


def test_doctor_does_not_say_of_an_older_server_that_its_database_is_another(sqlite_server: LiveServer) -> None:
    with Client(sqlite_server.url) as client:
        who = {name: value for name, value in client.call("GET", "session").items() if name in ("name", "role")}
        assert [*_database_lines("server x", client, who, "0123")] == [
            "server x: it does not say which database it has"
        ]


def test_doctor_says_that_a_named_server_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        code, lines = doctor(url=f"http://127.0.0.1:{taken.getsockname()[1]}", data_dir=str(tmp_path))
    assert code == 3
    assert of_server(lines)[0].startswith("server: no answer from http://127.0.0.1:")
    code, lines = doctor(url="127.0.0.1:7480", data_dir=str(tmp_path))
    assert (code, of_server(lines)[0][:40]) == (3, "server: error: LOCKSTEP_URL: the URL mus")


def test_doctor_says_what_keeps_a_server_from_being_ready(sqlite_server: LiveServer, tmp_path: Path) -> None:
    folder = sqlite_server.ctx.files.root
    folder.rename(tmp_path / "moved")
    folder.write_text("no folder")
    code, lines = doctor(url=sqlite_server.url, database_url=sqlite_server.settings.database_url)
    assert code == 3
    assert "answers, but files " in of_server(lines)[0]
