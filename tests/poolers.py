"""PgBouncer in transaction mode before the PostgreSQL server of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from tests.conftest import wait_until
from tests.proxies import free_port, listens

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_SETTINGS = """[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 400
"""


@contextmanager
def pgbouncer(folder: Path, url: str, connections: int = 4) -> Iterator[str]:
    """Run PgBouncer before a server; return the URL of the same database through it.

    Args:
        folder: for its settings.
        url: SQLAlchemy URL of the database.
        connections: to the database, shared by all.
    """
    assert PGBOUNCER is not None
    place = make_url(url)
    port = free_port()
    settings = folder / "pgbouncer.ini"
    known = {"host": place.host, "port": place.port or 5432, "user": place.username, "own_port": port}
    settings.write_text(_SETTINGS.format(**known, connections=connections))
    descriptor = os.open(settings, os.O_RDONLY)  # it runs as another user, who may not reach the folder
    as_other = ["-u", "nobody"] if os.geteuid() == 0 else []
    command = [PGBOUNCER, "-q", *as_other, f"/dev/fd/{descriptor}"]
    process = subprocess.Popen(command, pass_fds=[descriptor], stderr=subprocess.DEVNULL)
    os.close(descriptor)
    try:
        wait_until(lambda: listens(port), timeout=60, what="PgBouncer")
        yield place.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        process.terminate()
        process.wait(timeout=60)
