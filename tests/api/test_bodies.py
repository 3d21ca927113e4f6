"""A key that stands twice in a body is refused by name, by every way in: readers of JSON disagree on which counts."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed

from app.routes import artifacts, experiments, exports, live, operations, reports, webhooks, workers
from app.routes.deps import StrictRoute
from lockstep.protocol import RegisterRequest
from tests.conftest import LiveServer
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.live.test_protocol import socket_of

pytestmark = pytest.mark.server

ROUTERS = (workers, experiments, live, reports, exports, artifacts, operations, webhooks)
NEWCOMER: dict[str, Any] = {
    **{"name": "w", "host": "h", "incarnation": "i"},
    "device": {"uid": "cpu:h:0", "kind": "cpu", "device_class": "cpu", "model": "test", "memory_bytes": 1},
}
EXPERIMENT, ASSIGNMENT = "exp_0000000000", "asg_0000000000"
SPEC = json.dumps(tiny_spec())
#: (method, path, a body with a key twice, the key)
WAYS = [
    ("POST", "plans", SPEC.replace('"budget": {', '"budget": {"rounds": 3, '), "rounds"),
    ("POST", "experiments", SPEC.replace('"name": "tiny"', '"name": "tiny", "seed": 8'), "seed"),
    ("PATCH", f"experiments/{EXPERIMENT}", '{"name": "a", "notes": "", "name": "b"}', "name"),
    ("POST", f"experiments/{EXPERIMENT}/clone", '{"overrides": {"budget": {"rounds": 1, "rounds": 2}}}', "rounds"),
    ("POST", f"experiments/{EXPERIMENT}/cancel", '{"reason": "a", "reason": "b"}', "reason"),
    ("POST", f"experiments/{EXPERIMENT}/extend", '{"replicates": 1, "replicates": 2}', "replicates"),
    ("POST", f"experiments/{EXPERIMENT}/reorder", '{"top": true, "top": false}', "top"),
    ("POST", "tokens", '{"name": "a", "role": "viewer", "role": "admin"}', "role"),
    ("POST", "webhooks", '{"url": "http://a/", "url": "http://b/"}', "url"),
    ("POST", "session", '{"token": "aaaaaaaaa", "token": "bbbbbbbbb"}', "token"),
    ("POST", "calibrations", '{"seed": 1, "seed": 2}', "seed"),
    ("POST", "live-tickets", f'{{"experiment": "{EXPERIMENT}", "experiment": "x"}}', "experiment"),
    ("POST", "workers", '{"name": "a", "device": {"uid": "x", "uid": "y"}}', "uid"),
    ("POST", "workers/wrk_0000000000/heartbeat", '{"incarnation": "a", "incarnation": "b"}', "incarnation"),
    ("POST", "workers/wrk_0000000000/drain", '{"now": true, "now": false}', "now"),
    ("POST", f"assignments/{ASSIGNMENT}/ready", '{"warm_up": {"record": {"a": 1, "a": 2}}}', "a"),
    ("PUT", f"assignments/{ASSIGNMENT}/rounds/0", '{"runs": [{"metrics": {"m": 1, "m": 2}}]}', "m"),
    ("POST", f"assignments/{ASSIGNMENT}/metrics", '{"series": [], "series": []}', "series"),
    ("POST", f"assignments/{ASSIGNMENT}/logs", '{"lines": [{"seq": 1, "seq": 2, "text": ""}]}', "seq"),
    ("POST", f"assignments/{ASSIGNMENT}/checkpoints", '{"next_round": 1, "runs": [], "next_round": 2}', "next_round"),
    ("POST", f"assignments/{ASSIGNMENT}/release", '{"outcome": "stopped", "outcome": "completed"}', "outcome"),
]


def test_key_given_twice_is_refused_by_name_by_every_way_in(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Lockstep-Lease": "x"}
    for method, path, body, key in WAYS:
        answer = http.request(method, f"/api/v1/{path}", content=body, headers=headers)
        document = answer.json()
        code = (
            "invalid_spec" if path in ("plans", "experiments") else "duplicate_key"
        )  # every refused spec has one code
        assert (answer.status_code, document["code"]) == (422, code), (path, document)
        assert f"'{key}' is given twice" in document["detail"]
        assert document["errors"][0]["code"] == "duplicate_key"
        assert document["errors"][0]["remedy"]


def test_same_key_in_two_objects_is_fine(http: httpx.Client, server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    body = '{"overrides": {"experiment": {"name": "a"}, "budget": {"rounds": 1}}}'
    assert http.post(f"/api/v1/experiments/{experiment_id}/clone", content=body).status_code == 201


def test_frame_of_a_socket_with_a_key_twice_closes_it_and_names_the_key(server: LiveServer) -> None:
    with socket_of(server, submit(server.ctx)) as socket:
        socket.recv()
        socket.send('{"type": "subscribe", "after": null, "after": "x"}')
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4400
    assert "'after' is given twice" in closed.value.rcvd.reason


def test_every_route_with_a_body_reads_strict_json() -> None:
    routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    with_body = [route for route in routes if (route.methods or set()) & {"POST", "PUT", "PATCH"}]
    assert [route.path for route in with_body if not isinstance(route, StrictRoute)] == []
    assert len(with_body) > len(WAYS)


#: (method, path, what is wrong in a valid body of a worker): each fits its type, and no column that it goes to.
TOO_LARGE: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "rounds/0", {"first_seq": 2**31}),
    *(
        ("PUT", "rounds/0", {"episodes": [wrong]})
        for wrong in ({"env_id": 2**63}, {"episode_reward": [1]}, {"mode": 3})
    ),
    ("PUT", "rounds/0", {"episodes": [{"native_return": "1"}]}),
    ("PUT", "rounds/0", {"episodes": [{"success": []}]}),
    ("PUT", "rounds/0", {"eval_episodes": [{"outcome": "a" * 33}]}),
    *(("PUT", "rounds/0", {"events": [wrong]}) for wrong in ({"env_id": "a"}, {"severity": "loud"})),
    ("POST", "checkpoints", {"next_round": 2**63}),
    ("POST", "checkpoints", {"next_round": 1, "runs": [{"run_id": "\x00", "sha256": "a" * 64}]}),
    ("POST", "checkpoints", {"next_round": 1, "runs": [{"run_id": "run_0000", "sha256": "\x00"}]}),
    ("POST", "metrics", {"run_id": "\x00"}),
    ("POST", "release", {"outcome": "error", "cause": "oom", "pinned_run": "\x00"}),
    ("POST", "logs", {"lines": [{"seq": 2**63, "text": ""}]}),
    ("POST", "metrics", {"round": [2**40]}),
    ("POST", "ready", {"resume_round": 2**64}),
]


def test_what_fits_no_column_is_refused_and_the_worker_goes_on(http: httpx.Client, server: LiveServer) -> None:
    submit(server.ctx, tiny_spec(budget={"rounds": 1}))
    worker = SimulatedWorker(server.ctx).register()
    while worker.claim() is None:
        worker.beat("idle")
    held = worker.held
    run: dict[str, Any] = {
        "run_id": held.runs[0].run_id,
        "digest": "a" * 64,
        "env_steps": 1,
        "first_seq": 1,
        "metrics": {},
    }
    points: dict[str, Any] = {"names": ["a"], "name_index": [0], "step": [1], "round": [0], "t": [1.0], "value": [1.0]}
    series = {"run_id": run["run_id"], "first_seq": 1, **points}
    for method, path, wrong in TOO_LARGE:
        body = {"rounds/0": {"runs": [run | wrong]}, "metrics": {"series": [series | wrong]}}.get(path, wrong)
        if path == "checkpoints":
            body = {"runs": [{"run_id": run["run_id"], "sha256": "a" * 64}], **wrong}
        headers = {"Lockstep-Lease": held.lease}
        answer = http.request(method, f"/api/v1/assignments/{held.assignment_id}/{path}", json=body, headers=headers)
        assert answer.status_code == 422, (path, wrong, answer.text)
    worker.train(rounds=1)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"rewards": {"z": {"schema": {"properties": {"p": "number"}}}}}, "schema.properties['p'] is 'number'"),
        ({"rewards": {"z": {"env_kinds": "gymnasium"}}}, "env_kinds must be a list of names"),
        ({"environments": {"z": {"properties": {"p": {"minimum": "0"}}}}}, "has minimum '0'"),
        ({"environments": {"z": {"tasks": ["a"]}}}, "tasks stand beside environments"),
    ],
)
def test_a_schema_that_cannot_judge_is_refused_when_a_worker_brings_it(facts: dict[str, Any], told: str) -> None:
    """It would be an error 500 for every specification that names it."""
    with pytest.raises(ValidationError, match=re.escape(told)):
        RegisterRequest.model_validate({**NEWCOMER, **facts})


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        *(
            ({kind: {"e" * 300_000: announced}}, f"{kind}: the name 'eeee")
            for kind, announced in (
                ("rewards", {}),
                ("environments", {}),
                ("datasets", ""),
                ("versions", ""),
                ("tasks", []),
            )
        ),
        ({"rewards": {"z": {"defect": "d" * 300_000}}}, "rewards.z: defect has 300000 characters"),
        ({"environments": {"z": {"defect": "d" * 1_001}}}, "environments.z: defect has 1001 characters"),
        ({"environments": {"z": {"properties": {"p" * 300_000: {}}}}}, "environments.z: it has 300024 characters"),
        ({"rewards": {"z": {"version": "1" * 300_000}}}, "rewards.z: it has 300015 characters"),
        ({"datasets": {"digits": "f" * 1_001}}, "datasets: what stands under 'digits' has 1001 characters"),
        ({"versions": {str(number): "1" for number in range(3_001)}}, "versions has 3001 entries"),
        ({"tasks": {"gymnasium": [{"ids": ["e" * 300_000]}]}}, "tasks.gymnasium[0].ids[0] has 300000 characters"),
    ],
)
def test_what_a_worker_announces_is_bounded_and_the_field_is_named(
    sqlite_server: LiveServer, facts: dict[str, Any], told: str
) -> None:
    answer = httpx.post(f"{sqlite_server.url}/api/v1/workers", json={**NEWCOMER, **facts}, timeout=60)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["message"].startswith(told)
    assert error["remedy"].startswith("use at most ")
    assert len(answer.text) < 2_000
