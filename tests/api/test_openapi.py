"""The OpenAPI document says what a caller needs: examples, meanings, credentials, the schema of a specification."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.openapi import by_tag, operations
from app.settings import Settings
from lockstep.spec import reference
from tests.conftest import LiveServer

DOCUMENT: dict[str, Any] = create_app(Settings()).openapi()


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(DOCUMENT["components"]["schemas"][name]) if name else schema


def test_every_parameter_says_what_it_means_and_every_body_has_an_example() -> None:
    for path, method, operation in operations(DOCUMENT):
        for item in operation.get("parameters", []):
            assert item.get("description"), (method, path, item["name"])
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            if kind == "application/octet-stream" or operation["tags"] == ["worker"]:
                continue
            assert "example" in content or resolved(content["schema"]).get("examples"), (method, path)


def test_every_call_but_health_and_log_in_names_its_credentials() -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert (schemes["token"]["scheme"], schemes["session"]["in"]) == ("bearer", "cookie")
    without = {path for path, _, operation in operations(DOCUMENT) if not operation["security"]}
    assert without == {"/healthz", "/readyz", "/metrics", "/api/v1/session"}


def test_schema_of_a_specification_is_the_real_one_and_no_reference_dangles() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["Specification"]["properties"]) == set(reference.schema()["properties"])
    text = json.dumps(DOCUMENT)
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(schemas)
    for path in ("/api/v1/plans", "/api/v1/experiments"):
        body = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
        assert body["application/json"]["schema"] == {"$ref": "#/components/schemas/Specification"}
        assert body["application/yaml"]["example"].startswith("# Two arms")


def test_page_of_the_api_shows_every_call() -> None:
    shown = by_tag(DOCUMENT)
    assert sum(map(len, shown.values())) == len(list(operations(DOCUMENT)))
    found = [call for call in shown["experiments"] if (call["method"], call["path"]) == ("POST", "/api/v1/experiments")]
    assert "arms:" in found[0]["body"]


@pytest.mark.server
def test_page_of_the_api_comes_from_this_server_alone(sqlite_server: LiveServer) -> None:
    page = httpx.get(f"{sqlite_server.url}/docs", timeout=30)
    assert page.status_code == 200
    assert "/api/v1/experiments/{experiment_id}/series" in page.text
    assert "//cdn" not in page.text


@pytest.mark.server
def test_unknown_query_parameter_is_refused_in_one_sentence(sqlite_server: LiveServer) -> None:
    with httpx.Client(base_url=f"{sqlite_server.url}/api/v1", timeout=30) as http:
        for path, told in (
            ("experiments?stauts=failed", "unknown query parameter 'stauts' (did you mean 'status'?)"),
            ("queue?color=red", "unknown query parameter 'color' (known: cursor, limit)"),
            ("experiments/exp_00000000?x=1", "unknown query parameter 'x' (this call takes none)"),
            ("runs/run_00000000/logs?levle=info", "unknown query parameter 'levle' (did you mean 'level'?)"),
        ):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (422, "unknown_parameter")
            assert answer.json()["detail"] == told
        assert http.get("experiments?status=failed&limit=3").status_code == 200
