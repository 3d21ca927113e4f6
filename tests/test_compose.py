"""docker-compose.yml holds together: what a service names is there in every profile that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from sqlalchemy import make_url

from app.settings import Settings

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


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
    assert set(given) <= {f"LOCKSTEP_{name}".upper() for name in Settings.model_fields}
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
