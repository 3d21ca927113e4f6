"""docker-compose.yml and Dockerfile hold together, as far as can be seen without an engine that runs containers.

Names are looked up, every command is read by the program that it calls, and a server is started from what the image
holds, with the settings of a team, and asked as its health check asks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import ValidationError
from sqlalchemy import make_url

from app import serving
from app.cli import admin
from app.settings import Settings
from tests.conftest import wait_until
from tests.proxies import free_port, listens
from worker.__main__ import parse

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
#: What this project does not make; their settings are theirs.
FOREIGN = {"postgres", "nginx"}
#: Keys of a service that these files use, of those that the specification of Compose has.
KEYS = {"build", "command", "depends_on", "deploy", "environment", "healthcheck", "image", "network_mode", "ports"}
KEYS |= {"profiles", "restart", "secrets", "shm_size", "stop_grace_period", "volumes"}


def stages() -> dict[str, dict[str, list[str]]]:
    """Return the instructions of each stage of the Dockerfile, with those of the stage that it is made from."""
    made: dict[str, dict[str, list[str]]] = {}
    name = ""
    for line in DOCKERFILE.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            made[name] = {key: list(lines) for key, lines in made.get(source, {"FROM": [source]}).items()}
        elif word and not word.startswith("#"):
            made[name].setdefault(word, []).append(rest)
    return made


def environment_of(stage: Mapping[str, list[str]]) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in stage.get("ENV", []) for pair in shlex.split(line))


def is_ours(service: Mapping[str, Any]) -> bool:
    return "build" in service


def test_services_are_made_of_known_parts() -> None:
    assert set(COMPOSE) - {key for key in COMPOSE if key.startswith("x-")} == {"services", "secrets", "volumes"}
    for name, service in SERVICES.items():
        assert set(service) <= KEYS, name
        assert is_ours(service) or service["image"].partition(":")[0] in FOREIGN, name
        assert not is_ours(service) or service["build"]["target"] in stages(), name
        for needed, how in service.get("depends_on", {}).items() if isinstance(service.get("depends_on"), dict) else ():
            other = SERVICES[needed]
            is_checked = "healthcheck" in other or (
                is_ours(other) and "HEALTHCHECK" in stages()[other["build"]["target"]]
            )
            assert how["condition"] != "service_healthy" or is_checked, (
                f"{name} waits for {needed}, which nobody checks"
            )


def test_every_command_is_read_by_the_program_that_it_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_SPOOL_DIR", str(tmp_path))
    program: Any = typer.main.get_command(admin.app)
    checked = 0
    for service in filter(is_ours, SERVICES.values()):
        stage = stages()[service["build"]["target"]]
        command = service.get("command") or json.loads(stage["CMD"][-1])
        if "ENTRYPOINT" in stage:
            assert json.loads(stage["ENTRYPOINT"][-1]) == ["python", "-m", "worker"]
            parse(command)  # ends the process where it is none
            secrets = {f"/run/secrets/{name}" for name in service.get("secrets", [])}
            assert {word for word in command if word.startswith("/run/")} <= secrets
        else:
            assert command[0] == "lockstep"
            found = program
            for word in command[1:]:
                found = found.commands[word]
        checked += 1
    assert checked == 7


def test_the_proxy_knows_every_server_of_the_team_and_the_traefik_example_too() -> None:
    servers = {f"{name}:7480" for name in SERVICES if name.startswith("api-")}
    conf = (ROOT / "docs/proxies/nginx.conf").read_text(encoding="utf-8")
    assert set(re.findall(r"server (\S+:\d+)", conf)) == servers
    assert set(stages()["api"]["EXPOSE"]) == {"7480"} == {str(Settings.model_fields["port"].default)}
    known: dict[str, Any] = yaml.safe_load((ROOT / "docs/proxies/traefik.yaml").read_text(encoding="utf-8"))
    # names of Traefik 3's reference of its file provider, HTTP
    assert set(known) == {"http"}
    assert set(known["http"]) == {"routers", "services", "serversTransports"}
    (router,), (service,) = known["http"]["routers"].values(), known["http"]["services"].values()
    assert set(router) <= {"entryPoints", "middlewares", "priority", "rule", "service", "tls"}
    assert router["service"] in known["http"]["services"]
    assert re.fullmatch(r"Host\(`[^`]+`\) && PathPrefix\(`/[^`]+`\)", router["rule"])
    balancer = service["loadBalancer"]
    assert set(balancer) <= {
        "healthCheck",
        "passHostHeader",
        "responseForwarding",
        "servers",
        "serversTransport",
        "sticky",
    }
    assert {item["url"] for item in balancer["servers"]} == {f"http://{server}" for server in servers}
    assert set(balancer["healthCheck"]) <= {"headers", "hostname", "interval", "method", "path", "port", "timeout"}
    transport = known["http"]["serversTransports"][balancer["serversTransport"]]["forwardingTimeouts"]
    assert set(transport) <= {
        "dialTimeout",
        "idleConnTimeout",
        "pingTimeout",
        "readIdleTimeout",
        "responseHeaderTimeout",
    }
    assert int(transport["idleConnTimeout"].removesuffix("s")) < serving._IDLE_SECONDS


def test_images_copy_what_is_there_and_install_what_is_offered() -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    for name, stage in stages().items():
        for line in stage["COPY"]:
            *sources, _ = shlex.split(line)
            assert all((ROOT / source).exists() for source in sources), line
        for group in re.findall(r"-e \"?\.\[([\w,]+)\]", " ".join(stage["RUN"])):
            assert set(group.split(",")) <= extras
        given = {key for key in environment_of(stage) if key.startswith("LOCKSTEP_")}
        assert given <= {f"LOCKSTEP_{field}".upper() for field in Settings.model_fields}
        assert name == "base" or stage["USER"][-1] == "10001"
    assert float(SERVICES["api-1"]["stop_grace_period"].removesuffix("s")) > serving._END_SECONDS


@pytest.mark.server
@pytest.mark.long
def test_server_made_of_what_the_image_holds_passes_its_health_check(tmp_path: Path) -> None:
    stage, port = stages()["api"], free_port()
    for line in stage["COPY"]:
        *sources, target = shlex.split(line)
        for source in (ROOT / item for item in sources):
            place = tmp_path / "image" / target
            if source.is_dir():
                shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)
    given = {**environment_of(stage), **SERVICES["api-1"]["environment"]}
    given = {key: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value) for key, value in given.items()}
    for elsewhere in ("LOCKSTEP_DATABASE_URL", "LOCKSTEP_DATABASE_PASSWORD_FILE"):
        given.pop(elsewhere, None)
    given |= {"LOCKSTEP_DATA_DIR": str(tmp_path / "data"), "LOCKSTEP_PORT": str(port)}
    image = tmp_path / "image"
    environment = {**os.environ, **given, "PYTHONPATH": str(image)}
    code = f"import app, sys; assert app.__file__.startswith({str(image)!r}); from app.cli.people import main; main()"
    check = json.loads(stage["HEALTHCHECK"][-1].partition(" CMD ")[2])
    assert check[0] == "python"
    asked = [sys.executable, *(word.replace(":7480/", f":{port}/") for word in check[1:])]
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 1  # nothing listens yet
    command = [sys.executable, "-c", code, *json.loads(stage["CMD"][-1])[1:]]
    server = subprocess.Popen(command, env=environment, cwd=image, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port), timeout=60, what="the server")
        assert subprocess.run(asked, check=False).returncode == 0
    finally:
        server.terminate()
        assert server.wait(timeout=30) == -signal.SIGTERM  # which uvicorn passes on once it has ended


def test_every_service_is_in_a_profile_that_is_looked_at() -> None:
    assert {name for item in SERVICES.values() for name in item["profiles"]} == {"laptop", "team", "gpu"}


@pytest.mark.parametrize("profiles", [{"laptop"}, {"team"}, {"team", "gpu"}])
def test_every_profile_has_what_its_services_name(profiles: set[str]) -> None:
    chosen = {name: item for name, item in SERVICES.items() if profiles & set(item["profiles"])}
    assert chosen
    for item in chosen.values():
        assert set(item.get("depends_on", [])) <= set(chosen)
        assert set(item.get("secrets", [])) <= set(COMPOSE["secrets"])
        for volume in item.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_file(), source


def test_settings_of_the_servers_are_settings_and_no_secret_stands_in_the_file() -> None:
    given = SERVICES["api-1"]["environment"]
    for service in filter(is_ours, SERVICES.values()):
        assert set(service.get("environment", {})) <= {f"LOCKSTEP_{name}".upper() for name in Settings.model_fields}
    assert make_url(given["LOCKSTEP_DATABASE_URL"]).password is None
    assert SERVICES["api-2"]["environment"] == given


def test_password_of_a_file_may_hold_any_character(tmp_path: Path) -> None:
    password = "p@ss/w:ord%20#?&\\1é"
    (tmp_path / "secret").write_text(f"{password}\n", encoding="utf-8")
    settings = Settings(
        database_url="postgresql://lockstep@db:5432/lockstep?sslmode=require",
        database_password_file=tmp_path / "secret",
    )
    url = make_url(settings.url)
    assert (url.username, url.password, url.host, url.database) == ("lockstep", password, "db", "lockstep")
    assert dict(url.query) == {"sslmode": "require"}
    beside = settings.model_copy(update={"listen_url": "postgresql://lockstep@primary:5433/lockstep"})
    heard = make_url(beside.notices_url)  # past a pooler, with the same password
    assert (heard.username, heard.password, heard.host, heard.port) == ("lockstep", password, "primary", 5433)
    assert settings.notices_url == settings.url
    for wrong in ("primary:5433", "postgresql://primary:port/lockstep", "sqlite:///x.db"):
        with pytest.raises(ValidationError, match="it is no URL of PostgreSQL; write it as postgresql://"):
            Settings(listen_url=wrong)
    with pytest.raises(ValidationError, match="cannot be read"):
        Settings(database_password_file=tmp_path / "none")
    for named in ("", "postgresql://db/lockstep", "postgresql://lockstep:other@db/lockstep"):
        with pytest.raises(ValidationError, match=r"LOCKSTEP_DATABASE_URL must name one and no password; write it as"):
            Settings(database_url=named, database_password_file=tmp_path / "secret")
