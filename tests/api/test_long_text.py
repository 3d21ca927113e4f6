"""No answer of the API repeats all of a long text, wherever in a request it stood."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.conftest import FAST, LiveServer, start_server
from tests.factories import submit, tiny_spec

pytestmark = pytest.mark.server
LONG = "long" * 5_000
DOCUMENT = create_app(Settings()).openapi()
CALLS = [
    (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if not path.endswith(("/stream", "/ws", "/calibrations"))
]


@dataclass
class Case:
    """A request: where, with which query, headers and body."""

    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


@pytest.fixture(scope="module")
def live(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("long")
    shutil.copy(sqlite_template, folder / "lockstep.db")
    given: dict[str, Any] = {
        **FAST,
        "database_url": f"sqlite:///{folder / 'lockstep.db'}",
        "data_dir": folder / "data",
    }
    server = start_server(Settings(**given))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def experiment_id(live: LiveServer) -> str:
    return submit(live.ctx, tiny_spec())


def cases(method: str, path: str, experiment_id: str) -> Iterator[Case]:
    operation = DOCUMENT["paths"][path][method]
    named: dict[str, dict[str, str]] = {"path": {}, "query": {}, "header": {}}
    for item in operation.get("parameters", []):
        if item["in"] == "path" or item.get("required"):
            named[item["in"]][item["name"]] = "x"
    if "experiment_id" in named["path"]:
        named["path"]["experiment_id"] = experiment_id
    at, query, headers = path.format(**named["path"]), named["query"], named["header"]
    for item in operation.get("parameters", []):
        name = item["name"]
        if item["in"] == "path":
            yield Case(path.format(**{**named["path"], name: LONG}), query, headers)
        else:
            given = {"query": query, "header": headers}
            given[item["in"]] = {**given[item["in"]], name: LONG}
            yield Case(at, given["query"], given["header"])
    yield Case(at, {**query, LONG: "1"}, headers)
    yield Case(at, query, {**headers, "content-encoding": LONG, "accept": LONG, "if-match": LONG, "origin": LONG})
    for media in operation.get("requestBody", {}).get("content", {}):
        typed = {**headers, "content-type": media}
        twice = f'{{"{LONG}": 1, "{LONG}": 2}}'
        for body in (json.dumps({LONG: 1}), json.dumps(LONG), LONG, twice, json.dumps({LONG: 1})[:-1]):
            yield Case(at, query, typed, body)
        for name in _properties(operation["requestBody"]["content"][media].get("schema", {})):
            for value in (LONG, [LONG], {LONG: LONG}, [{LONG: LONG}]):
                yield Case(at, query, typed, json.dumps({name: value}))


def _properties(schema: dict[str, Any]) -> list[str]:
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return [*schema.get("properties", {}), *(name for one in schema.get("anyOf", []) for name in _properties(one))]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_no_call_answers_with_all_of_a_long_text(live: LiveServer, experiment_id: str, method: str, path: str) -> None:
    with httpx.Client(base_url=live.url, timeout=60) as http:
        for case in cases(method, path, experiment_id):
            content = case.body.encode() if case.body else None
            answer = http.request(method, case.path, params=case.query, headers=case.headers, content=content)
            refused = answer.status_code >= 400
            assert not refused or LONG[:400] not in answer.text, answer.text[:1_000]
            assert all(len(value) < 1_000 for value in answer.headers.values()), answer.headers


@pytest.mark.parametrize("path", [f"/{LONG}", f"/experiments/x/{LONG}", f"/static/{LONG}"])
def test_a_page_that_is_not_there_is_named_by_its_beginning(live: LiveServer, path: str) -> None:
    answer = httpx.get(live.url + path, headers={"accept": "text/html"}, timeout=60)
    assert answer.status_code == 404
    assert LONG[:400] not in answer.text
