"""Settings from the environment (prefix ``LOCKSTEP_``); one frozen object, passed as an argument."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.store.database.engine import Pools
from lockstep.address import clean_path, is_loopback

_POSTGRESQL = re.compile(r"postgres(ql)?(\+psycopg)?://(\S*@)?(\[[^\]]*\]|[^/:@?]*)(:\d+)?([/?]\S*)?")
#: A database URL up to the sign behind its user.
_WITHOUT_PASSWORD = re.compile(r"^(\S+?://[^:@/]+)@")
_PATH = re.compile(r"(?!.*//)[A-Za-z0-9._~/-]*")
_LIST = Annotated[tuple[str, ...], NoDecode]
#: Name of the SQLite file in ``data_dir``, where no other database is named.
DATABASE_FILE = "lockstep.db"


class Settings(BaseSettings):
    """Everything an operator may set.

    Raises:
        ValidationError: for a value out of range, a lease shorter than four heartbeats, or
            authentication off on an address that is not loopback.
    """

    model_config = SettingsConfigDict(env_prefix="LOCKSTEP_", frozen=True, extra="ignore")

    database_url: str = Field("", description="SQLAlchemy URL; default: SQLite in data_dir")
    database_password_file: Path | None = Field(None, description="File with the password for database_url")
    listen_url: str = Field(
        "", description="PostgreSQL URL by which to hear of other API processes, past a pooler; default: database_url"
    )
    prepared_statements: bool = Field(True, description="Off behind a pooler of transactions, such as PgBouncer")
    statement_timeout_seconds: float = Field(60.0, gt=0, description="A statement of PostgreSQL that takes longer ends")
    pool_workers: int = Field(12, ge=2, le=500, description="Connections to the database for workers and the schedule")
    pool_people: int = Field(12, ge=2, le=500, description="The same for pages, live streams and scripts")
    pool_exports: int = Field(4, ge=2, le=500, description="The same for exports, reports, webhooks and deleting")
    data_dir: Path = Path(".lockstep")
    bind: str = "127.0.0.1"
    port: int = Field(7480, ge=0, le=65_535, description="0 = a free port, printed")
    root_path: str = Field("", description="Path below which a proxy shows the site, such as /lockstep")
    allowed_hosts: _LIST = ()
    allowed_origins: _LIST = ()
    trusted_proxies: _LIST = Field((), description="Addresses whose X-Forwarded-For and X-Forwarded-Proto are believed")
    auth: Literal["token", "off"] = "off"
    heartbeat_seconds: float = Field(5.0, gt=0)
    lease_ttl_seconds: float = Field(45.0, gt=0)
    sweep_seconds: float = Field(5.0, gt=0)
    tick_seconds: float = Field(2.0, gt=0)
    reservation_seconds: float = Field(60.0, gt=0)
    warmup_seconds: float = Field(900.0, gt=0)
    gang_patience_seconds: float = Field(300.0, ge=0)
    grace_seconds: float = Field(60.0, gt=0)
    stall_after_seconds: float = Field(300.0, gt=0)
    stall_kill_seconds: float = Field(1800.0, gt=0)
    backoff_seconds: float = Field(30.0, ge=0, description="Back-off after a bug or timeout: x 2^n")
    owner_device_limit: int = Field(1000, ge=1)
    owner_quota_bytes: int = Field(0, ge=0, description="An owner with so many bytes of files gets no new work; 0: any")
    owner_quota_points: int = Field(0, ge=0, description="The same of points of metrics")
    quota_bytes: int = Field(0, ge=0, description="At so many bytes of files nobody gets new work; 0: any")
    quota_points: int = Field(0, ge=0, description="The same of points of metrics")
    submitter_priority_limit: int = Field(50, ge=0, le=100, description="Above it only operators may set a priority")
    session_hours: float = Field(12.0, gt=0, le=24 * 365, description="A browser logs in again after so long")
    login_failures: int = Field(10, ge=1, description="Failed log-ins of one address in a minute; then it waits")
    live_hz: float = Field(5.0, gt=0, le=50)
    ping_seconds: float = Field(15.0, gt=0)
    max_body_bytes: int = Field(8 * 2**20, ge=1024)
    max_artifact_bytes: int = Field(512 * 2**20, ge=1024)
    audit_retention_days: int = Field(365, ge=1)
    deleted_retention_days: float = Field(7.0, ge=0, description="A deleted experiment is purged after so long")
    min_free_bytes: int = Field(256 * 2**20, ge=0, description="With less room on its disk no file is taken")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        split = dict(data)
        for name in ("allowed_hosts", "allowed_origins", "trusted_proxies"):
            if isinstance(split.get(name), str):
                split[name] = tuple(part.strip() for part in split[name].split(",") if part.strip())
        return split

    @field_validator("port", mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        if isinstance(given, str) and given.startswith("tcp://"):
            raise ValueError(
                f"it is {given!r}, which Kubernetes sets where a Service is called lockstep; "
                "write enableServiceLinks: false into the pod, or set the number"
            )
        return given

    @field_validator("root_path", mode="after")
    @classmethod
    def _is_path(cls, given: str) -> str:
        if not _PATH.fullmatch(given):
            raise ValueError(f"{given!r} is no path; write only what stands behind the host, such as /lockstep")
        return given

    @field_validator("listen_url", mode="after")
    @classmethod
    def _is_postgresql(cls, given: str) -> str:
        if given and not _POSTGRESQL.fullmatch(given):
            raise ValueError("it is no URL of PostgreSQL; write it as postgresql://user@host:5432/database")
        return given

    @field_validator("data_dir", mode="after")
    @classmethod
    def _home(cls, given: Path) -> Path:
        return clean_path(given)

    @field_validator("database_password_file", mode="after")
    @classmethod
    def _readable(cls, given: Path | None) -> Path | None:
        if given is not None:
            _read_secret(clean_path(given))
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.lease_ttl_seconds < 4 * self.heartbeat_seconds:
            raise ValueError(
                f"LOCKSTEP_LEASE_TTL_SECONDS {self.lease_ttl_seconds:g} must be at least 4 x "
                f"LOCKSTEP_HEARTBEAT_SECONDS {self.heartbeat_seconds:g}; raise it or beat faster"
            )
        if self.auth == "off" and not is_loopback(self.bind):
            raise ValueError(
                f"LOCKSTEP_AUTH is off, so LOCKSTEP_BIND must be loopback, not {self.bind}; "
                "create a token with `lockstep token create` and set LOCKSTEP_AUTH=token"
            )
        if self.database_password_file is not None and not _WITHOUT_PASSWORD.match(self.database_url):
            raise ValueError(
                "LOCKSTEP_DATABASE_PASSWORD_FILE is the password of a user, so LOCKSTEP_DATABASE_URL must name one and "
                "no password; write it as postgresql://user@host:5432/database"
            )
        return self

    @property
    def host_warning(self) -> str | None:
        """What to say at start where the server listens for everybody and answers only this machine, or anybody."""
        if self.bind not in ("0.0.0.0", "::") or (self.allowed_hosts and "*" not in self.allowed_hosts):  # noqa: S104
            return None
        told = "is empty: other machines connect and are refused, for only localhost is answered"
        if self.allowed_hosts:
            told = "has *: a page of any site can reach this server by a name of its own (DNS rebinding)"
        return (
            f"LOCKSTEP_BIND is {self.bind}, all addresses, and LOCKSTEP_ALLOWED_HOSTS {told}; "
            "name the hosts by which it is called"
        )

    @property
    def url(self) -> str:
        """The database URL, with the default filled in and the password of its file, whatever signs that has."""
        default = f"sqlite:///{quote(str((self.data_dir / DATABASE_FILE).absolute()))}"
        return self._with_password(self.database_url) or default

    @property
    def notices_url(self) -> str:
        """The database URL by which to hear of other API processes, with the password of its file."""
        return self._with_password(self.listen_url) or self.url

    def _with_password(self, url: str) -> str:
        if self.database_password_file is None:
            return url
        password = quote(_read_secret(clean_path(self.database_password_file)), safe="")
        return _WITHOUT_PASSWORD.sub(lambda user: f"{user[1]}:{password}@", url, count=1)

    @property
    def pools(self) -> Pools:
        """Connections to the database, by whom they are for."""
        return Pools(self.pool_workers, self.pool_people, self.pool_exports)

    @property
    def base_path(self) -> str:
        """The configured root path without a trailing slash."""
        return "/" + self.root_path.strip("/") if self.root_path.strip("/") else ""

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether pages of an Origin may write to the site at ``host``: its own, or one on the list."""
        scheme, _, authority = origin.partition("://")
        return origin in self.allowed_origins or (scheme in ("http", "https") and authority == host)


def _read_secret(path: Path) -> str:
    """Return the one line of a file of a secret.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no text"
        raise ValueError(f"the file {path} cannot be read ({why}); correct the path or its rights") from error
