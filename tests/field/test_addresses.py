"""Field lessons L63, L64, L66 and L68: what answers at an address, by which name, and how addresses are written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url, text

from app.settings import Settings
from app.store.database.opening import connect
from tests import postgres
from tests.conftest import LiveServer, wait_until
from tests.field.conftest import ROOT, StartLight, is_up

PAGE = b"<html><title>Sign in</title></html>"
#: What stands in the place of a server; what a person is told, and a worker; whether that one waits for it to go.
ANSWERS = {
    "bad gateway": (502, {}, "502 Bad Gateway: a proxy answered, not the server", "(502 Bad Gateway", True),
    "sign-in page": (200, {}, "not JSON: something else answers", "no Lockstep server but a proxy", False),
    "redirect": (302, {"Location": "https://login.lab/"}, "leads on to https://login.lab/; name that one",
                 "it redirects to https://login.lab/", False),
}  # fmt: skip


@pytest.fixture(params=ANSWERS)
def other(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str, bool]]:
    """Another program's address, what a person and a worker are to be told of it, and whether the worker waits."""
    status, headers, told, said, waits = ANSWERS[request.param]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", "Content-Length": str(len(PAGE)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(PAGE)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{listener.server_port}", told, said, waits
    listener.shutdown()
    listener.server_close()


@pytest.mark.server
def test_l63_what_answers_in_the_place_of_a_server_is_told_in_a_sentence(
    other: tuple[str, str, str, bool], light_worker: StartLight
) -> None:
    url, to_people, said, waits = other
    worker = light_worker(url)
    code = "from app.cli.people import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", code, "list"],
        env={**os.environ, "LOCKSTEP_URL": url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, len(told.stderr.splitlines())) == (3, 1)
    assert to_people in told.stderr
    wait_until(lambda: said in worker.log.read_text(), timeout=60, what="word of it")
    if waits:
        assert worker.process.poll() is None
    else:
        assert worker.process.wait(timeout=60) == 3
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.server
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_l64_probes_answer_whatever_host_they_call(make_server: Callable[..., LiveServer], database_url: str) -> None:
    server = make_server(database_url, allowed_hosts="lab.example")
    with httpx.Client(base_url=server.url, headers={"Host": "10.1.2.3:7480"}) as probe:
        assert [probe.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        assert probe.get("/queue").status_code == 400
        assert probe.get("/queue", headers={"Host": "lab.example"}).status_code == 200


@pytest.mark.pg
@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_l66_any_sign_may_stand_in_a_password_and_the_short_scheme_works(
    pg_url: str, tmp_path: Path, scheme: str
) -> None:
    password = "p@ss:w/%41 ö#?[1]&'\""
    (tmp_path / "secret").write_text(f"{password}\n", encoding="utf-8")
    bare = make_url(pg_url).set(drivername="postgresql", password=None).render_as_string()
    settings = Settings(database_url=bare.replace("postgresql", scheme, 1), database_password_file=tmp_path / "secret")
    assert make_url(settings.url).password == password
    store = connect(settings.url)
    with store.read() as session:
        assert session.execute(text("SELECT current_user")).scalar_one() == make_url(postgres.URL).username
    store.close()


@pytest.mark.server
def test_l68_a_printed_ipv6_address_works_and_head_is_answered_as_get(tmp_path: Path) -> None:
    given = {"LOCKSTEP_DATA_DIR": str(tmp_path), "LOCKSTEP_BIND": "::1", "LOCKSTEP_LOG_LEVEL": "error"}
    code = "from app.cli.people import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **given},
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1].rstrip("/")
            assert url.startswith("http://[::1]:")
            with httpx.Client(base_url=url, timeout=60) as http:
                assert is_up(url), "it said that it listens before it did"
                for path in ("/", "/queue", "/workers", "/healthz", "/readyz"):
                    got, head = http.get(path), http.head(path)
                    assert (head.status_code, head.content) == (got.status_code, b"")
                    assert head.headers["content-type"] == got.headers["content-type"]
        finally:
            process.kill()
