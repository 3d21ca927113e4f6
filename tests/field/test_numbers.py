"""Field lesson L55: numbers with exponents, by every way in."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from lockstep.client import ApiError, Client
from tests.conftest import LiveServer
from tests.factories import tiny_spec

pytestmark = pytest.mark.server
NUMBERS = {"lr": 1e-5, "adam_eps": 1e-05}


def planned(server: LiveServer, text: str, kind: str | None) -> httpx.Response:
    headers = {"Content-Type": kind} if kind else {}
    return httpx.post(f"{server.url}/api/v1/plans", content=text.encode(), headers=headers, timeout=30)


def test_l55_numbers_with_exponents_are_numbers(server: LiveServer) -> None:
    raw = tiny_spec(ppo=NUMBERS)
    as_json = json.dumps(raw)
    as_yaml = "\n".join(f"{name}: {json.dumps(value)}" for name, value in raw.items())
    assert "1e-05" in as_json
    with Client(server.url) as client:
        hashes = {client.plan(given)["spec_hash"] for given in (raw, as_json, as_yaml)}
        ids = [client.submit(given)["id"] for given in (raw, as_json, as_yaml)]
        assert {client.show(item)["spec_hash"] for item in ids} == hashes
        body: dict[str, Any] = {"overrides": {"ppo": {"lr": 3e-4}}}
        assert client.call("POST", f"experiments/{ids[0]}/clone", content=json.dumps(body))["id"] not in ids
    for text, kind in ((as_json, "application/json"), (as_json, None), (as_yaml, "application/yaml"), (as_yaml, None)):
        assert planned(server, text, kind).json()["spec_hash"] in hashes
    assert len(hashes) == 1


def test_l55_json_is_judged_as_json_and_a_key_given_twice_is_named(server: LiveServer) -> None:
    refused = planned(server, "a: 1e-5", "application/json; charset=utf-8")
    assert refused.status_code == 422
    assert "not valid JSON" in refused.json()["errors"][0]["message"]
    twice = '{"ppo": {"lr": 1e-5, "lr": 3e-4}}'
    for kind in ("application/json", "application/yaml"):
        answer = planned(server, twice, kind).json()
        assert answer["code"] == "invalid_spec"
        assert "'lr' is given twice" in answer["errors"][0]["message"]
    with Client(server.url) as client, pytest.raises(ApiError, match="'lr' is given twice"):
        client.submit(twice)
