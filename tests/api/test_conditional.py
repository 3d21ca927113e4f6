"""Conditional requests: who has what would be sent gets 304, by its tag, weak or in a list, and by ``*``."""

from __future__ import annotations

import hashlib

import httpx
import pytest

from app.services.training.ingest import Upload, put_file
from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec

pytestmark = [pytest.mark.server, pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)]


def test_reports_exports_files_and_static_files_are_sent_once(server: LiveServer, http: httpx.Client) -> None:
    experiment_id = submit(server.ctx, tiny_spec(budget={"rounds": 1}))
    api = f"/api/v1/experiments/{experiment_id}"
    assert "etag" not in http.get(f"{api}/export").headers  # it grows
    worker = SimulatedWorker(server.ctx).register()
    assert worker.claim() is not None
    content = b"of a policy"
    upload = Upload(worker.held.runs[0].run_id, "policy", "a", None, hashlib.sha256(content).hexdigest())
    put_file(server.ctx, worker.held.assignment_id, worker.held.lease, upload, [content])
    worker.train(1)
    wait_until(lambda: http.get(f"{api}/report").status_code == 200, what="the report")
    [artifact] = [item for item in http.get(f"{api}/artifacts").json()["items"] if item["kind"] == "policy"]
    static = http.get("/").text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    forms = [f"{api}/report?format={form}" for form in ("json", "html", "md", "csv", "py")]
    paths = [*forms, f"{api}/export?format=csv", f"/api/v1/artifacts/{artifact['id']}/content", static]
    for path in paths:
        first = http.get(path)
        etag = first.headers["etag"]
        assert first.headers["cache-control"] != "no-store"
        for given in (etag, f'"another", {etag}', f"W/{etag.removeprefix('W/')}"):
            again = http.get(path, headers={"If-None-Match": given})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag), (path, given)
            # written over what the browser has: a report stays one that the page may frame
            assert again.headers["content-security-policy"] == first.headers["content-security-policy"], path
        assert http.head(path, headers={"If-None-Match": etag}).status_code == 304
        assert http.get(path, headers={"If-None-Match": '"another"'}).status_code == 200
    assert http.get(forms[0], headers={"If-None-Match": "*"}).status_code == 304
