"""What `lockstep doctor` says: of the settings and the database here, of packages, and of the server that commands ask.

The database of the settings and that of the server need not be one: it is said which was looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.cli.ends import ended_by, reach
from app.services.experiments.reading import defects_of
from app.services.operations import PARTS
from app.settings import Settings
from app.store.rows.workers import WorkerRow
from lockstep import plugins
from lockstep.address import hidden
from lockstep.client import ApiError, Client
from lockstep.direction import isolated
from lockstep.revision import code_identity
from lockstep.spec.environments.families import FAMILIES

_ASK_SECONDS = 10.0
#: Exit codes: the server refuses; it cannot be used as it is.
_REFUSED, _AWAY = 1, 3


def pools_text(settings: Settings, offered: int | None) -> str:
    """Say how many connections a server with these settings holds, and how many the database has."""
    sizes = ", ".join(f"{lane} {size}" for lane, size in settings.pools.by_lane.items())
    if offered is None:
        return f"{sizes}; of one SQLite file, where many read and one writes at a time, heartbeats before others"
    if not settings.prepared_statements:
        return f"{sizes}; with a pooler before the database, which shares its own {offered} out"
    return f"{sizes}; each server may ask for {settings.pools.total + 1} of {offered} connections (max_connections)"


def plugins_here() -> Iterator[str]:
    """Say what is installed beside this command, and what of it cannot be used."""
    taken = {plugins.REWARDS: plugins.builtin_rewards(), plugins.ENVIRONMENTS: dict.fromkeys(FAMILIES, "a family")}
    for kind, group in (("reward", plugins.REWARDS), ("environment", plugins.ENVIRONMENTS)):
        clashes = plugins.clashes(group, taken[group])
        reasons = {p.name: plugins.defect(p) for p in plugins.installed(group) if p.name not in clashes}
        usable = [name for name, reason in reasons.items() if reason is None]
        if usable:
            yield f"plug-ins here: {kind}s {', '.join(usable)}"
        for clash in clashes.values():
            yield f"plug-ins here: {clash}; no worker starts beside it"
        for name, reason in reasons.items():
            if reason is not None:
                yield _told("plug-ins here", kind, name, reason)


def plugins_of(row: WorkerRow) -> Iterator[str]:
    """Say which rewards and environments a worker offers beside the built-in ones, and what it cannot use."""
    where = f"worker {isolated(row.name)}"
    offered = {"rewards": row.rewards, "environments": {n: f for n, f in row.environments.items() if n not in FAMILIES}}
    usable = {kind: [name for name, facts in known.items() if "defect" not in facts] for kind, known in offered.items()}
    told = [f"{kind} {', '.join(names)}" for kind, names in usable.items() if names]
    if told:
        yield f"{where}: {'; '.join(told)}"
    for item in defects_of(row):
        yield _told(where, **item)
    for name, code in plugins.identities({name for names in usable.values() for name in names}).items():
        there = row.versions.get(plugins.version_key(name), code)
        if there != code:
            remedy = "restart the worker after an install, for it goes by what it registered"
            yield f"{where}: it registered {name!r} of {there}, here is {code}; {remedy}"


def _told(where: str, kind: str, name: str, reason: str) -> str:
    return f"{where}: {kind} {name!r} cannot be used: {reason}; correct or remove its package, then restart the worker"


@dataclass
class Asked:
    """What the server that commands ask has answered.

    Attributes:
        lines: to print.
        code: exit code.
    """

    lines: list[str] = field(default_factory=list)
    code: int = 0


def is_named() -> bool:
    """Return whether somebody has said which server commands ask."""
    return bool(os.environ.get("LOCKSTEP_URL"))


def ask_server(epoch: str | None) -> Asked:
    """Ask the server that commands ask: does it answer, is it ready, is the token taken, and which database has it.

    Args:
        epoch: of the database that was looked at here; None where none was.
    """
    asked = Asked()
    try:
        with reach(timeout=_ASK_SECONDS) as client:
            _ask(asked, client, epoch)
    except Exception as error:
        told = ended_by(error)
        if told is None:
            raise
        which = "" if is_named() else " (asked by default, for LOCKSTEP_URL is not set)"
        asked.lines.append(f"server{which}: {told[0]}")
        asked.code = _AWAY if is_named() else 0  # without a name there need not be one
    return asked


def _ask(asked: Asked, client: Client, epoch: str | None) -> None:
    where = f"server {hidden(client.url)}"
    named = "LOCKSTEP_URL" if is_named() else "by default, for LOCKSTEP_URL is not set"
    ready = client.readiness()
    amiss = [f"{part} {ready[part]}" for part in PARTS if ready.get(part, "ok") != "ok"]
    if amiss:
        asked.code = _AWAY
    asked.lines.append(f"{where} ({named}): answers, {'but ' + ', '.join(amiss) if amiss else 'ready'}")
    try:
        who = client.call("GET", "session")
    except ApiError as error:
        if error.is_away or error.is_foreign:
            raise
        token = "the token of LOCKSTEP_TOKEN is not taken" if os.environ.get("LOCKSTEP_TOKEN") else "it wants a token"
        asked.lines.append(f"{where}: {token}: {error}; an admin makes one: lockstep token create, then LOCKSTEP_TOKEN")
        asked.code = _REFUSED
        return
    me = "it asks for no token" if who["role"] == "local" else f"you are {isolated(who['name'])}, role {who['role']}"
    asked.lines.append(f"{where}: {me}; it is {_version_text(who)}")
    asked.lines += _database_lines(where, client, who, epoch)


def _version_text(who: Mapping[str, Any]) -> str:
    here, there = code_identity().text, who.get("version")
    if there == here:
        return f"lockstep {here}, as here"
    return f"lockstep {there or 'of before this command was there'}, here is {here}: bring both to one version"


def _database_lines(where: str, client: Client, who: Mapping[str, Any], epoch: str | None) -> Iterator[str]:
    """Say whether the server has the database that was looked at; of another one, what its workers cannot use."""
    there = who.get("epoch")  # an older server does not tell it
    if epoch and there == epoch:
        yield f"{where}: its database is the one above"
        return
    yield f"{where}: " + ("its database is not the one above" if there else "it does not say which database it has")
    for item in client.workers():
        for defect in item["defects"]:
            yield _told(f"worker {isolated(item['name'])} there", **defect)
