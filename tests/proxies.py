"""Proxies before a live server: the nginx of docs/proxies where it is installed, and a plain one that drops a path."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import wait_until

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
EXAMPLE = Path(__file__).parents[1] / "docs/proxies/nginx.conf"
_FRAME = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{ access_log off; {temporary} include {folder}/site.conf; }}
"""


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def nginx(folder: Path, servers: Sequence[str], prefix: str = "", *, strips: bool = False) -> Iterator[str]:
    """Run nginx with the configuration of the documentation before some servers; return its address with the prefix.

    Args:
        folder: for its files.
        servers: URLs.
        prefix: the path below which it answers.
        strips: whether it takes the path off.
    """
    assert NGINX is not None
    port = free_port()
    places = "".join(f"server {urlsplit(url).netloc} max_fails=1 fail_timeout=1s;" for url in servers)
    site = re.sub(r"(server api-\d:\d+ [^;]*;\s*)+", places, EXAMPLE.read_text())
    site = site.replace("listen 80;", f"listen 127.0.0.1:{port}; listen [::1]:{port};")
    site = site.replace("location / {", f"location {prefix}/ {{")
    site = site.replace("proxy_pass http://lockstep;", f"proxy_pass http://lockstep{'/' if strips else ''};")
    (folder / "site.conf").write_text(site)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(_FRAME.format(folder=folder, temporary=temporary))
    process = subprocess.Popen([NGINX, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"])
    try:
        wait_until(lambda: listens(port), timeout=60, what="nginx")
        yield f"http://127.0.0.1:{port}{prefix}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def listens(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with closing(socket.socket()) as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def plain(server: str, prefix: str, *, drops_sockets: bool = False) -> Iterator[str]:
    """Pass bytes on, a request a connection, and take the prefix off its path; return the address with the prefix.

    Args:
        server: URL.
        prefix: a path, or nothing.
        drops_sockets: whether the connection of a WebSocket is closed without an answer.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        threading.Thread(target=_accept, args=(listener, server, prefix.encode(), drops_sockets), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"


def _accept(listener: socket.socket, server: str, prefix: bytes, drops_sockets: bool) -> None:
    while True:
        try:
            asking, _ = listener.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_serve, args=(asking, server, prefix, drops_sockets), daemon=True).start()


def _serve(asking: socket.socket, server: str, prefix: bytes, drops_sockets: bool) -> None:
    place = urlsplit(server)
    with asking, socket.create_connection((place.hostname, place.port)) as answering:
        head = b""
        while b"\r\n\r\n" not in head:
            head += (more := asking.recv(65_536))
            if not more:
                return
        head = head.replace(b" " + prefix + b"/", b" /", 1)
        is_socket = b"upgrade: websocket" in head.lower()
        if is_socket and drops_sockets:
            return
        if not is_socket:
            head = re.sub(rb"(?i)connection: [^\r]*", b"Connection: close", head)
        answering.sendall(head)
        threading.Thread(target=_pass_on, args=(asking, answering), daemon=True).start()
        _pass_on(answering, asking)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65_536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of both has left
        return
