"""The OpenAPI document: the schema of a specification, who may call what, and what the page of the API shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from app.routes.deps import SESSION_COOKIE
from app.routes.documents import SPECIFICATION
from lockstep.spec import reference

#: Calls that need no credentials.
_OPEN = {"healthz", "readyz", "prometheus", "log_in", "log_out"}
_SCHEMES: dict[str, Any] = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `lockstep token create`; not needed where the server runs with LOCKSTEP_AUTH=off",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "What `POST /api/v1/session` gives a browser; it writes with an Origin of this site only",
    },
}


def install(app: FastAPI) -> None:
    """Complete the document that FastAPI makes."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        components = document.setdefault("components", {})
        if "securitySchemes" not in components:
            components["securitySchemes"] = _SCHEMES
            components.setdefault("schemas", {}).update(_specification())
            for _, _, operation in operations(document):
                is_open = operation["operationId"] in _OPEN
                operation["security"] = [] if is_open else [{"token": []}, {"session": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this way to extend it


def _specification() -> dict[str, Any]:
    """Return the schema of a specification and of its sections, by their names in the document."""
    name = SPECIFICATION.rpartition("/")[2]
    made = json.loads(json.dumps(reference.schema()).replace('"#/$defs/', f'"{SPECIFICATION}.'))
    sections = made.pop("$defs", {})
    return {name: made, **{f"{name}.{section}": schema for section, schema in sections.items()}}


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (path, method in capitals, operation) of every call."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def by_tag(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what the page of the API shows: {tag: its calls}, each with method, path, words, parameters and body."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, method, operation in operations(document):
        call = {
            "method": method,
            "path": path,
            "text": operation.get("description") or operation.get("summary", ""),
            "parameters": [_parameter(item) for item in operation.get("parameters", [])],
            "body": _body(document, operation),
            "answers": {status: answer["description"] for status, answer in operation["responses"].items()},
        }
        groups.setdefault(operation["tags"][0], []).append(call)
    return groups


def _parameter(item: Mapping[str, Any]) -> dict[str, Any]:
    schema = item["schema"]
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    words = [word for kind in kinds for word in kind.get("enum", [kind.get("type", "")])]
    default = schema.get("default")
    return {
        "name": item["name"],
        "in": item["in"],
        "text": item.get("description", ""),
        "form": " | ".join(map(str, words)),
        "default": "required" if item.get("required") else "" if default is None else f"default {json.dumps(default)}",
    }


def _body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    """Return an example of the body of a call, as text; empty without one."""
    content = operation.get("requestBody", {}).get("content", {})
    yaml = content.get("application/yaml", {}).get("example")
    if yaml is not None:
        return str(yaml)
    given = content.get("application/json", {})
    name = given.get("schema", {}).get("$ref", "").rpartition("/")[2]
    examples = document["components"]["schemas"].get(name, {}).get("examples", [])
    example = given.get("example", examples[0] if examples else None)
    return "" if example is None else json.dumps(example, indent=2)
