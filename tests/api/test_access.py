"""Who may do what over HTTP: tokens, roles, cookies, hosts, sizes, keys, pages, versions."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.services import access
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, submit, tiny_spec

pytestmark = pytest.mark.server


@pytest.fixture
def guarded(make_server: Callable[..., LiveServer], database_url: str) -> LiveServer:
    return make_server(database_url, auth="token", max_body_bytes=200_000)


@pytest.fixture
def secrets(guarded: LiveServer) -> dict[str, str]:
    return {role: access.create(guarded.ctx, role, role, None, LOCAL).secret for role in access.ROLES}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def api(guarded: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{guarded.url}/api/v1", timeout=30) as client:
        yield client


#: (method, path, roles that may)
TABLE = [
    ("GET", "/experiments", {"viewer", "submitter", "operator", "admin"}),
    ("GET", "/queue", {"viewer", "submitter", "operator", "admin"}),
    ("POST", "/experiments", {"submitter", "operator", "admin"}),
    ("POST", "/queue/pause", {"operator", "admin"}),
    ("GET", "/tokens", {"admin"}),
    ("GET", "/audit", {"admin"}),
    ("POST", "/workers", {"worker"}),
]


def test_every_right_belongs_to_its_roles_only(api: httpx.Client, secrets: dict[str, str]) -> None:
    for method, path, allowed in TABLE:
        assert api.request(method, path).status_code == 401
        for role, secret in secrets.items():
            body = tiny_spec() if path == "/experiments" and method == "POST" else {}
            answer = api.request(method, path, json=body, headers=bearer(secret))
            assert (answer.status_code != 403) is (role in allowed), (method, path, role, answer.status_code)
            assert answer.status_code < 500


def test_revoked_and_expired_tokens_are_refused(api: httpx.Client, guarded: LiveServer) -> None:
    lasting = access.create(guarded.ctx, "one", "viewer", None, LOCAL)
    brief = access.create(guarded.ctx, "two", "viewer", 1e-9, LOCAL)
    assert api.get("/experiments", headers=bearer(lasting.secret)).status_code == 200
    assert api.get("/experiments", headers=bearer(brief.secret)).status_code == 401
    access.revoke(guarded.ctx, lasting.id, LOCAL)
    answer = api.get("/experiments", headers=bearer(lasting.secret))
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
    assert lasting.secret not in answer.text


def test_submitter_steers_own_experiments_only(api: httpx.Client, guarded: LiveServer, secrets: dict[str, str]) -> None:
    other = submit(guarded.ctx)
    mine = api.post("/experiments", json=tiny_spec(), headers=bearer(secrets["submitter"])).json()["id"]
    assert api.post(f"/experiments/{other}/cancel", headers=bearer(secrets["submitter"])).status_code == 403
    assert api.post(f"/experiments/{mine}/cancel", headers=bearer(secrets["submitter"])).status_code == 202
    assert api.post(f"/experiments/{other}/cancel", headers=bearer(secrets["operator"])).status_code == 202


def test_cookie_writes_need_an_origin_of_this_site(
    api: httpx.Client, guarded: LiveServer, secrets: dict[str, str]
) -> None:
    login = api.post("/session", json={"token": secrets["submitter"]})
    cookie = login.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert api.get("/experiments").status_code == 200
    assert api.post("/experiments", json=tiny_spec()).status_code == 403
    foreign = {"Origin": "https://evil.example"}
    assert api.post("/experiments", json=tiny_spec(), headers=foreign).status_code == 403
    own = {"Origin": guarded.url}
    assert api.post("/experiments", json=tiny_spec(), headers=own).status_code == 201


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},  # a sandboxed frame, a local file
    {"Origin": "http://127.0.0.1:1"},  # another program on this machine
    {"Sec-Fetch-Site": "cross-site"},  # Origin was stripped on the way
    {"Sec-Fetch-Site": "same-site"},
]
WRITES = [
    ("POST", "/api/v1/queue/pause"),
    ("POST", "/api/v1/experiments"),
    ("POST", "/api/v1/workers"),
    ("PATCH", "/api/v1/experiments/exp_00000000"),
    ("PUT", "/api/v1/assignments/asg_00000000/rounds/0"),
    ("DELETE", "/api/v1/experiments/exp_00000000"),
    ("DELETE", "/api/v1/session"),
    ("POST", "/api/v1/session"),
]


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda headers: "-".join(*headers.items()))
def test_foreign_page_writes_nothing_though_auth_is_off(sqlite_server: LiveServer, headers: dict[str, str]) -> None:
    with httpx.Client(base_url=sqlite_server.url) as http:
        for method, path in WRITES:
            answer = http.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "origin"), (method, path)
            assert "LOCKSTEP_ALLOWED_ORIGINS" in answer.json()["detail"]
        assert http.get("/api/v1/queue", headers=headers).json()["paused"] is False


def test_bearer_writes_from_a_foreign_origin_are_refused_too(
    api: httpx.Client, guarded: LiveServer, secrets: dict[str, str]
) -> None:
    head = bearer(secrets["operator"])
    assert api.post("/queue/pause", headers={**head, "Origin": "https://evil.example"}).status_code == 403
    assert api.post("/queue/pause", headers={**head, "Origin": guarded.url}).status_code == 200
    assert api.post("/queue/resume", headers=head).status_code == 200


def test_own_page_allowed_origins_and_scripts_write(
    make_server: Callable[..., LiveServer], sqlite_template: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lockstep.db"
    shutil.copy(sqlite_template, path)
    server = make_server(f"sqlite:///{path}", allowed_origins="https://lab.example")
    allowed = [
        {},
        {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://lab.example", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
    ]
    with httpx.Client(base_url=server.url) as http:
        codes = [http.post("/api/v1/queue/pause", headers=headers).status_code for headers in allowed]
    assert codes == [200] * len(allowed)


def test_oversized_bodies_and_gzip_bombs_are_refused(api: httpx.Client, secrets: dict[str, str]) -> None:
    head = bearer(secrets["submitter"])
    assert api.post("/experiments", content=b"x" * 200_001, headers=head).status_code == 413
    bomb = gzip.compress(b"0" * 50_000_000)
    assert len(bomb) < 200_000
    answer = api.post("/experiments", content=bomb, headers={**head, "Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    broken = api.post("/experiments", content=b"nonsense", headers={**head, "Content-Encoding": "gzip"})
    assert broken.status_code == 400
    deep = b"[" * 50_000 + b"]" * 50_000
    assert api.post("/plans", content=deep, headers=head).status_code in (400, 422)


def test_idempotency_key_repeats_the_answer_and_refuses_another_body(
    api: httpx.Client, secrets: dict[str, str]
) -> None:
    head = {**bearer(secrets["submitter"]), "Idempotency-Key": "k1"}
    first = api.post("/experiments", json=tiny_spec(), headers=head)
    again = api.post("/experiments", json=tiny_spec(), headers=head)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    other = api.post("/experiments", json=tiny_spec(ppo={"lr": 0.5}), headers=head)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    theirs = api.post("/experiments", json=tiny_spec(), headers={**head, **bearer(secrets["operator"])})
    assert theirs.json()["id"] != first.json()["id"]


def test_pages_are_stable_while_experiments_arrive(http: httpx.Client, server: LiveServer) -> None:
    ids = [submit(server.ctx) for _ in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = http.get("/api/v1/experiments", params=params).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
        submit(server.ctx)
    assert seen == ids[::-1]
    assert http.get("/api/v1/experiments", params={"limit": 201}).status_code == 422
    assert http.get("/api/v1/experiments", params={"cursor": "nonsense"}).status_code == 422


def test_etag_answers_304_and_if_match_refuses_a_lost_update(http: httpx.Client, server: LiveServer) -> None:
    address = f"/api/v1/experiments/{submit(server.ctx)}"
    etag = http.get(address).headers["etag"]
    assert http.get(address, headers={"If-None-Match": etag}).status_code == 304
    assert http.patch(address, json={"notes": "one"}, headers={"If-Match": etag}).status_code == 200
    late = http.patch(address, json={"notes": "two"}, headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"]) == (412, "version_mismatch")
    assert http.get(address).json()["notes"] == "one"
    assert http.get(address, headers={"If-None-Match": etag}).status_code == 200


def test_bare_nan_in_a_request_is_malformed(http: httpx.Client) -> None:
    body = b'{"name": "w", "x": NaN}'
    answer = http.post("/api/v1/workers", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_event_stream_resumes_after_the_last_event_id(http: httpx.Client, server: LiveServer) -> None:
    from app.services import steering
    from lockstep.status import Desired

    experiment_id = submit(server.ctx)
    steering.set_desired(server.ctx, experiment_id, Desired.CANCEL, "", LOCAL)
    report = f"/api/v1/experiments/{experiment_id}/report"
    wait_until(lambda: http.get(report).status_code == 200, what="the report, which ends the stream")
    address = f"/api/v1/experiments/{experiment_id}/stream"

    def read(headers: dict[str, str]) -> list[tuple[str, str]]:
        found, last = [], ""
        with http.stream("GET", address, headers=headers) as stream:
            kind = ""
            for line in stream.iter_lines():
                if line.startswith("event:"):
                    kind = line[6:].strip()
                if line.startswith("id:"):
                    last = line[3:].strip()
                if not line and kind:
                    found.append((kind, last))
                    kind = ""
        return found

    whole = read({})
    assert whole[0][0] == "snapshot"
    assert whole[-1][0] == "end"
    rest = read({"Last-Event-ID": whole[-1][1]})
    assert [kind for kind, _ in rest] == ["end"]
