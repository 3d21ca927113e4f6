"""Who may do what over HTTP: tokens, roles, cookies, hosts, sizes, keys, pages, versions."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from fastapi.routing import APIRoute

from app.errors import ConflictError, UnauthorizedError
from app.main import create_app
from app.routes.deps import Admin, Operator, Reader, Submitter, WorkerActor
from app.services import access, audit
from app.services.context import Actor, Context
from app.services.experiments import reading
from app.services.throttling import Throttle
from app.settings import Settings
from tests.api.test_bodies import ROUTERS
from tests.conftest import Clock, LiveServer, wait_until
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
    ("GET", "/webhooks", {"admin"}),
    ("POST", "/webhooks", {"admin"}),
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


OF_ONE_EXPERIMENT = ("pause", "resume", "cancel", "reorder", "clone", "extend", "retry")
#: Calls that ask for more than the right to read, by the right.
RIGHTS = {
    Submitter: {
        "POST /experiments",
        "PATCH /experiments/{experiment_id}",
        "DELETE /experiments/{experiment_id}",
        *(f"POST /experiments/{{experiment_id}}/{act}" for act in OF_ONE_EXPERIMENT),
    },
    Operator: {
        "POST /workers/{worker_id}/drain",
        "POST /workers/{worker_id}/clear",
        "POST /calibrations",
        "POST /queue/{action}",
    },
    Admin: {
        *("GET /tokens", "POST /tokens", "DELETE /tokens/{token_id}", "GET /audit"),
        *("GET /webhooks", "POST /webhooks", "DELETE /webhooks/{webhook_id}", "GET /webhooks/{webhook_id}/deliveries"),
    },
    WorkerActor: {
        *("POST /workers", "POST /workers/{worker_id}/claim", "POST /workers/{worker_id}/heartbeat"),
        "GET /blocks/{block_id}/barrier",
        *(
            f"POST /assignments/{{assignment_id}}/{act}"
            for act in ("ready", "metrics", "logs", "checkpoints", "release")
        ),
        "PUT /assignments/{assignment_id}/rounds/{index}",
        "PUT /assignments/{assignment_id}/files/{sha256}",
        "GET /assignments/{assignment_id}/files/{sha256}",
    },
    None: {"POST /session", "DELETE /session"},
}


def test_every_call_asks_for_its_right_and_reading_is_the_least() -> None:
    expected = {call: right for right, calls in RIGHTS.items() for call in calls}
    rights = {get_args(right)[1].dependency: right for right in (*RIGHTS, Reader) if right is not None}
    routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    for route in routes:
        asked = [rights[item.call] for item in route.dependant.dependencies if item.call in rights]
        for method in route.methods or set():
            call = f"{method} {route.path.removeprefix('/api/v1')}"
            right = expected.pop(call, Reader)
            assert asked == ([] if right is None else [right]), call
    assert expected == {}
    assert len(routes) > 50


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
    assert "max-age=43200" in cookie.lower()
    assert secrets["submitter"] not in cookie
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


def test_second_token_of_a_name_is_another_owner_unless_it_is_made_like_the_first(
    api: httpx.Client, guarded: LiveServer
) -> None:
    first = access.create(guarded.ctx, "mia", "submitter", None, LOCAL)
    other = access.create(guarded.ctx, "mia", "submitter", None, LOCAL)
    renewed = access.create(guarded.ctx, "mia's laptop", "submitter", None, LOCAL, like=first.id)
    mine = api.post("/experiments", json=tiny_spec(), headers=bearer(first.secret)).json()["id"]
    refused = api.post(f"/experiments/{mine}/cancel", headers=bearer(other.secret))
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "mia, who is another owner of that name" in refused.json()["detail"]
    assert api.patch(f"/experiments/{mine}", json={"name": "x"}, headers=bearer(other.secret)).status_code == 403
    shown = api.get(f"/experiments/{mine}", headers=bearer(other.secret)).json()
    assert (shown["owner"], shown["owner_id"]) == ("mia", first.id)
    found = api.get("/experiments", params={"owner": first.id}, headers=bearer(other.secret)).json()["items"]
    assert [item["id"] for item in found] == [mine]
    assert api.post(f"/experiments/{mine}/cancel", headers=bearer(renewed.secret)).status_code == 202


def test_session_is_worth_nothing_after_log_out_expiry_or_the_end_of_its_token(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url, auth="token")
    made = access.create(server.ctx, "mia", "viewer", 1, LOCAL)

    def cookie() -> dict[str, str]:
        return {"Cookie": f"lockstep_session={access.log_in(server.ctx, made.secret, 'here', '-')[0]}"}

    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as http:
        assert http.get("/experiments", headers={"Cookie": f"lockstep_session={made.secret}"}).status_code == 401
        kept, other = cookie(), cookie()
        assert http.get("/experiments", headers=kept).status_code == 200
        assert http.delete("/session", headers={**kept, "Origin": server.url}).status_code == 204
        assert http.get("/experiments", headers=kept).status_code == 401
        assert http.get("/experiments", headers=other).status_code == 200
        access.revoke(server.ctx, made.id, LOCAL)
        assert http.get("/experiments", headers=other).status_code == 401


def test_session_ends_with_its_time_and_never_outlasts_its_token(ctx: Context, clock: Clock) -> None:
    lasting = access.create(ctx, "mia", "viewer", None, LOCAL)
    brief = access.create(ctx, "ben", "viewer", 1 / 24, LOCAL)
    cookie, seconds = access.log_in(ctx, lasting.secret, "here", "-")
    assert seconds == 12 * 3600
    assert access.log_in(ctx, brief.secret, "here", "-")[1] == pytest.approx(3600)
    clock.advance(12 * 3600 - 1)
    assert access.session_actor(ctx, cookie, "-").principal == lasting.id
    clock.advance(2)
    with pytest.raises(UnauthorizedError, match="the session has ended"):
        access.session_actor(ctx, cookie, "-")
    assert {row["name"]: row["state"] for row in access.listing(ctx)} == {"mia": "valid", "ben": "expired"}


def test_ticket_opens_one_stream_for_half_a_minute(ctx: Context, clock: Clock) -> None:
    actor = Actor("mia", "viewer", identity="tok_1")
    first, other, late, good = (access.issue_ticket(ctx, "exp_a", actor) for _ in range(4))
    assert access.use_ticket(ctx, first, "exp_a", "-").role == "viewer"
    clock.advance(29)
    access.use_ticket(ctx, good, "exp_a", "-")
    for secret, experiment_id, seconds in ((first, "exp_a", 0), (other, "exp_b", 0), (late, "exp_a", 2)):
        clock.advance(seconds)
        with pytest.raises(UnauthorizedError, match="unknown, used or expired"):
            access.use_ticket(ctx, secret, experiment_id, "-")


def test_failed_log_ins_are_throttled_and_logged_without_the_token(
    make_server: Callable[..., LiveServer], database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    server = make_server(database_url, auth="token", login_failures=3, log_level="warning")
    good = access.create(server.ctx, "mia", "viewer", None, LOCAL).secret
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as http:
        codes = [http.post("/session", json={"token": f"lsk_wrong_{index}"}).status_code for index in range(3)]
        blocked = http.post("/session", json={"token": good})
        assert http.get("/experiments", headers=bearer(good)).status_code == 200  # who has a token is not locked out
    assert codes == [401, 401, 401]
    assert (blocked.status_code, blocked.json()["code"]) == (429, "too_many")
    assert 1 <= int(blocked.headers["retry-after"]) <= 60
    written = "".join(capfd.readouterr())
    assert written.count("log-in failed") == 3
    assert "127.0.0.1" in written
    assert "lsk_wrong" not in written


def test_address_waits_until_its_oldest_failure_is_a_minute_old_and_no_other_address_does() -> None:
    now = [0.0]
    throttle = Throttle(2, lambda: now[0])
    throttle.failed("a")
    now[0] = 10.0
    throttle.failed("a")
    assert (throttle.wait("a"), throttle.wait("b")) == (50.0, 0.0)
    now[0] = 60.5
    assert throttle.wait("a") == 0.0
    throttle.failed("a")
    assert throttle.wait("a") == 9.5


def test_submitter_raises_no_priority_above_the_limit(api: httpx.Client, secrets: dict[str, str]) -> None:
    head, raised = bearer(secrets["submitter"]), tiny_spec(experiment={"priority": 51})
    refused = api.post("/experiments", json=raised, headers=head)
    assert (refused.status_code, refused.json()["code"]) == (403, "priority")
    assert "use at most 50, or ask an operator" in refused.json()["detail"]
    mine = api.post("/experiments", json=tiny_spec(), headers=head).json()["id"]
    over = {"overrides": {"experiment": {"priority": 90}}}
    assert api.post(f"/experiments/{mine}/clone", json=over, headers=head).status_code == 403
    assert api.patch(f"/experiments/{mine}", json={"priority": 60}, headers=head).status_code == 403
    assert (
        api.patch(f"/experiments/{mine}", json={"priority": 80}, headers=bearer(secrets["operator"])).status_code == 200
    )
    assert api.patch(f"/experiments/{mine}", json={"priority": 70, "notes": "n"}, headers=head).status_code == 200
    assert api.post("/experiments", json=raised, headers=bearer(secrets["operator"])).status_code == 201


def test_bind_to_all_addresses_without_an_allow_list_is_named() -> None:
    everywhere = {"auth": "token", "bind": "0.0.0.0"}
    assert "LOCKSTEP_ALLOWED_HOSTS is empty" in str(Settings(**everywhere).host_warning)  # type: ignore[arg-type]
    assert "DNS rebinding" in str(Settings(**everywhere, allowed_hosts=("*",)).host_warning)  # type: ignore[arg-type]
    assert Settings(**everywhere, allowed_hosts=("lab",)).host_warning is None  # type: ignore[arg-type]
    assert Settings().host_warning is None


def test_every_list_of_the_api_comes_in_pages() -> None:
    document = create_app(Settings()).openapi()
    schemas = document["components"]["schemas"]
    lists = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
            name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
            if "items" in schemas.get(name, {}).get("properties", {}):
                names = {item["name"] for item in operation.get("parameters", [])}
                assert names & {"cursor", "after"}, path
                assert names & {"limit", "tail"}, path
                lists.append(path)
    assert len(lists) >= 11


def test_pages_of_runs_hold_every_run_once(http: httpx.Client, server: LiveServer) -> None:
    address = f"/api/v1/experiments/{submit(server.ctx, tiny_spec(experiment={'replicates': 4}))}/runs"
    whole = [item["id"] for item in http.get(address).json()["items"]]
    first = http.get(address, params={"limit": 3}).json()
    rest = http.get(address, params={"limit": 5, "cursor": first["next"]}).json()
    assert [item["id"] for item in [*first["items"], *rest["items"]]] == whole
    assert (len(whole), rest["next"]) == (8, None)
    assert http.get(address, params={"cursor": "WyJydW5fMCJd"}).json()["code"] == "bad_cursor"


def test_record_of_acts_tells_owners_of_one_name_apart(api: httpx.Client, guarded: LiveServer) -> None:
    made = [access.create(guarded.ctx, "mia", "submitter", None, LOCAL) for _ in range(2)]
    ids = [api.post("/experiments", json=tiny_spec(), headers=bearer(item.secret)).json()["id"] for item in made]
    admin = bearer(access.create(guarded.ctx, "root", "admin", None, LOCAL).secret)
    acts = api.get("/audit", params={"actor": made[0].id}, headers=admin).json()["items"]
    assert [(act["actor"], act["action"], act["target"]) for act in acts] == [("mia", "experiment.submit", ids[0])]
    both = api.get("/audit", params={"actor": "mia"}, headers=admin).json()["items"]
    assert {act["target"] for act in both} == set(ids)
    assert "audit.js" in httpx.get(f"{guarded.url}/audit", timeout=30).text


def test_answer_lost_with_its_process_is_made_again_from_what_was_done(ctx: Context) -> None:
    """The act and its note commit together; the process dies before it stores the answer."""
    actor = Actor("mia", "submitter", "first", "tok_1", "k")
    assert audit.begin_idempotent(ctx, actor, "k", "digest") is None
    made = submit(ctx, actor=actor)
    later = replace(actor, request_id="second")
    assert audit.begin_idempotent(ctx, later, "k", "digest") == audit.Done(made)
    audit.end_idempotent(ctx, later, "k", None, "")  # a failure to show it frees no key whose act is done
    assert audit.begin_idempotent(ctx, replace(actor, request_id="third"), "k", "digest") == audit.Done(made)


def test_key_of_a_request_that_died_is_taken_over_and_the_dead_one_can_do_nothing_more(
    ctx: Context, clock: Clock
) -> None:
    slow, next_one = (Actor("mia", "submitter", name, "tok_1", "k") for name in ("first", "second"))
    assert audit.begin_idempotent(ctx, slow, "k", "digest") is None
    with pytest.raises(ConflictError, match="still running"):
        audit.begin_idempotent(ctx, next_one, "k", "digest")
    clock.advance(61)
    assert audit.begin_idempotent(ctx, next_one, "k", "digest") is None
    with pytest.raises(ConflictError, match="still running"):
        submit(ctx, actor=slow)
    audit.end_idempotent(ctx, slow, "k", None, "")
    made = submit(ctx, actor=next_one)
    assert [item["id"] for item in reading.list_experiments(ctx, reading.ListRequest())["items"]] == [made]


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
