"""What may stand in a name, by every way in, and how a name is shown; and links in the place of stored files."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app.cli.people import app as command
from app.services.artifacts import FileStore
from app.services.experiments.cursors import encode_cursor
from lockstep.direction import isolated
from lockstep.spec.presets import merge
from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec

pytestmark = pytest.mark.server
BAD = ["a\x00b", "a\x1b[31mb", "a\x7fb", "a\x85b", "a\rb", "a\u2028b", "a\ud800b", " \t ", "\u200b"]
RIGHT_TO_LEFT = "\u202eevil\u05d0"
DEVICE = {"uid": "cpu:h:0", "kind": "cpu", "device_class": "c", "model": "m", "memory_bytes": 1}
JSON = {"content-type": "application/json"}
WORKER = {"name": "w", "host": "h", "incarnation": "1", "device": DEVICE}


def ways_in(experiment_id: str, bad: str) -> list[tuple[str, str, dict[str, Any], str]]:
    """Return (method, path, body, what the refusal names)."""
    one = f"/experiments/{experiment_id}"
    return [
        ("POST", "/experiments", tiny_spec(experiment={"name": bad}), "/experiment/name"),
        ("POST", "/experiments", tiny_spec(experiment={"tags": ["x", bad]}), "/experiment/tags/1"),
        ("POST", f"{one}/clone", {"overrides": {"experiment": {"name": bad}}}, "/experiment/name"),
        ("PATCH", one, {"name": bad}, "/name"),
        ("PATCH", one, {"tags": [bad]}, "/tags/0"),
        ("POST", "/tokens", {"name": bad, "role": "viewer"}, "/name"),
        ("POST", "/workers", {**WORKER, "name": bad}, "/name"),
        ("POST", "/workers", {**WORKER, "host": bad}, "/host"),
        ("POST", "/workers", merge(WORKER, {"device": {"uid": bad}}), "/device/uid"),
    ]


def test_control_characters_and_blank_names_are_refused_by_every_way_in(http: httpx.Client, server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    for bad in BAD:
        for method, path, body, field in ways_in(experiment_id, bad):
            content = json.dumps(body)  # in ASCII: a lone surrogate has no other form
            answer = http.request(method, f"/api/v1{path}", content=content, headers=JSON)
            assert answer.status_code == 422, (path, bad, answer.text)
            pointers = [item["pointer"].removeprefix("/body") for item in answer.json()["errors"]]
            assert pointers == [field], (path, bad, answer.text)


def test_control_characters_elsewhere_are_refused_too(http: httpx.Client, server: LiveServer) -> None:
    experiment_id = submit(server.ctx)
    url = f"/api/v1/experiments/{experiment_id}"
    answers = [
        http.patch(url, json={"notes": "a\x00b"}),
        http.post(f"{url}/pause", json={"reason": "a\x00b"}),
        *(http.get("/api/v1/experiments", params={name: "a\x00b"}) for name in ("q", "owner", "tag")),
        http.get("/api/v1/experiments", params={"cursor": encode_cursor("a\x00b", "c")}),
        http.post("/api/v1/experiments", json=tiny_spec(arms=[{"label": "A", "overrides": {"reward.x": "a\x00b"}}])),
        http.post("/api/v1/experiments", json=tiny_spec(env={"task": "a\x00b"})),
    ]
    assert [answer.status_code for answer in answers] == [422] * len(answers), [answer.text for answer in answers]
    lines = {"notes": "two\nlines\tand a tab"}
    assert http.patch(url, json=lines).status_code == 200
    announced = {"rewards": {"a\x00b": {"defect": "c\x00d"}}}
    assert http.post("/api/v1/workers", json={**WORKER, **announced}).status_code == 200


def test_name_in_a_list_of_the_command_line_ends_its_own_direction(server: LiveServer) -> None:
    experiment_id = submit(server.ctx, tiny_spec(experiment={"name": RIGHT_TO_LEFT}))
    for arguments in (["list"], ["show", experiment_id]):
        result = CliRunner().invoke(command, arguments, env={"LOCKSTEP_URL": server.url})
        assert result.stdout.splitlines()[0].endswith(f"  \u2068{RIGHT_TO_LEFT}\u2069"), result.output
    assert isolated("plain") == "plain"
    assert isolated("\u2069\u05d0") == "\u2068\u05d0\u2069"


def test_link_in_the_place_of_a_stored_file_is_not_followed(
    http: httpx.Client, server: LiveServer, tmp_path: Path
) -> None:
    experiment_id = submit(server.ctx)
    worker = SimulatedWorker(server.ctx).register()
    wait_until(worker.claim, what="an assignment")
    worker.ready(), worker.hand_in(0)
    worker.checkpoint(1)
    items = http.get(f"/api/v1/experiments/{experiment_id}/artifacts").json()["items"]
    content = f"/api/v1/artifacts/{items[0]['id']}/content"
    digest = items[0]["sha256"]
    path = server.ctx.files.path(digest)
    assert http.get(content).content == path.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert_missing(http, content, server, digest)
    path.unlink()
    folder = tmp_path / "folder"
    path.parent.rename(folder)
    elsewhere.rename(folder / digest)
    path.parent.symlink_to(folder)
    assert_missing(http, content, server, digest)


def test_link_that_comes_and_goes_while_a_stored_file_is_read_is_never_followed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    stored = store.put([b"stored"], max_bytes=100)
    path, secret, spare = store.path(stored.sha256), tmp_path / "secret", tmp_path / "spare"
    secret.write_bytes(b"secret")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            spare.symlink_to(secret)
            spare.replace(path)
            spare.write_bytes(b"stored")
            spare.replace(path)

    def contents() -> Iterator[bytes]:
        for _ in range(5_000):
            file = store.open(stored.sha256)
            if file is not None:
                with file:
                    yield file.read()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        assert {*contents()} == {b"stored"}
    finally:
        ended.set()
        swapping.join()


def assert_missing(http: httpx.Client, content: str, server: LiveServer, digest: str) -> None:
    answer = http.get(content)
    assert (answer.status_code, answer.json()["code"]) == (404, "missing_object")
    assert server.ctx.files.read(digest) is None
