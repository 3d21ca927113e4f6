"""Clients that ask for an export and read nothing, and an experiment that is worth stalling on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import insert, select

from app.services.context import Context
from app.store.database.engine import Store, utc
from app.store.schema import tables as t
from tests.factories import submit

FORMS = ("csv", "json", "sqlite")
_BATCH = 5_000


def long_experiment(ctx: Context, rows: int) -> str:
    """Return an experiment with so many episodes and as many points: some 0.4 kB of each export a row."""
    experiment_id = submit(ctx)
    fill(ctx.store, experiment_id, rows)
    return experiment_id


def fill(store: Store, experiment_id: str, rows: int) -> None:
    """Add episodes and points to the first run of an experiment."""
    with store.write() as session:
        run = session.execute(select(t.run).where(t.run.c.experiment_id == experiment_id).order_by(t.run.c.no)).first()
        assert run is not None
        names = {"name": f"fill/{experiment_id}"}
        name_id = session.execute(insert(t.metric_name).values(names).returning(t.metric_name.c.id)).scalar_one()
        now = utc(store.now(session))
        attempt = {"run_no": run.no, "attempt": 1, "from_round": 0, "last_seq": rows, "started_at": now}
        session.execute(insert(t.run_attempt), [attempt])
    for first in range(0, rows, _BATCH):
        numbers = range(first, min(first + _BATCH, rows))
        place = {"block_id": run.block_id, "run_id": run.id, "device": "cpu:host:0", "group_id": "A", "replicate": 0}
        episode = {"experiment_id": experiment_id, "run_no": run.no, "attempt": 1, "env_id": 0, "started_at": now}
        episode |= {**place, "reward_mode": "shaped", "values": {}, "host_seed_key": "k" * 64}
        point = {"run_no": run.no, "attempt": 1, "name_id": name_id, "t": 0.5, "kind": 0}
        with store.write() as session:
            session.execute(insert(t.episode), [{**episode, "episode_idx": n, "round": n} for n in numbers])
            points = [{**point, "seq": n + 1, "step": n * 1.0, "round": n, "value": n / 7} for n in numbers]
            session.execute(insert(t.point), points)


def stall(url: str, experiment_id: str, form: str) -> socket.socket:
    """Ask for an export and return the socket, from which nothing was read yet."""
    place = urlsplit(url)
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # before it connects, or the window stays wide
    opened.settimeout(300)
    opened.connect((place.hostname, place.port))
    path = f"/api/v1/experiments/{experiment_id}/export?format={form}"
    opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
    return opened


@contextmanager
def stalled(url: str, experiment_id: str, forms: tuple[str, ...], count: int) -> Iterator[list[socket.socket]]:
    """So many clients of each form that have the first bytes of an export and read no more."""
    sockets = [stall(url, experiment_id, form) for form in forms for _ in range(count)]
    try:
        for opened in sockets:
            assert opened.recv(12) == b"HTTP/1.1 200"
        yield sockets
    finally:
        for opened in sockets:
            opened.close()


def held_files(folder: Path, pid: int | str = "self") -> list[str]:
    """Return what a process holds open in a folder, deleted or not, and what lies there."""
    held = [path.name for path in folder.rglob("*")]
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            held.append(target)
    return held
