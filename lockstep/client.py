"""Python client of the API: a thin layer over httpx, for scripts and the command line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from lockstep.address import clean_token, clean_url
from lockstep.spec.reading import looks_like_json
from lockstep.status import TERMINAL_RUN

DEFAULT_URL = "http://127.0.0.1:7480"
_RETRIES = 5
_LOG_SECONDS, _LOG_LINES = 1.0, 1000


class ApiError(Exception):
    """The server refused; carries the problem document.

    Attributes:
        status: HTTP status.
        document: RFC 9457 problem.
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.document = dict(document)
        lines = [
            f"{item['pointer'] or '/'}: {item['message']}" + (f" ({item['remedy']})" if item.get("remedy") else "")
            for item in document.get("errors", [])
        ]
        super().__init__("\n".join(lines) or str(document.get("detail", f"HTTP {status}")))


class Client:
    """Calls of one server.

    Args:
        url: base URL, default ``LOCKSTEP_URL`` or this machine.
        token: bearer token, default ``LOCKSTEP_TOKEN``.

    Raises:
        BadAddress: URL or token cannot be used.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 60.0) -> None:
        self.url = clean_url(url or os.environ.get("LOCKSTEP_URL") or DEFAULT_URL, "url" if url else "LOCKSTEP_URL")
        secret = clean_token(token or os.environ.get("LOCKSTEP_TOKEN"), "token" if token else "LOCKSTEP_TOKEN")
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._http = httpx.Client(base_url=f"{self.url}/api/v1/", headers=headers, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Call the API and return its JSON (None without a body).

        Raises:
            ApiError: the server refused.
            httpx.TransportError: no answer.
        """
        response = self._http.request(method, path, **options)
        if response.status_code >= 400:
            raise ApiError(response.status_code, _problem(response))
        return response.json() if response.content else None

    def plan(self, spec: Mapping[str, Any] | str) -> dict[str, Any]:
        """Validate a spec (data, or YAML/JSON text) and return what it would run."""
        return dict(self.call("POST", "plans", **_spec_body(spec)))

    def submit(self, spec: Mapping[str, Any] | str, *, key: str | None = None) -> dict[str, Any]:
        """Submit a spec; ``key`` makes a repeated call harmless."""
        headers = {"Idempotency-Key": key} if key else {}
        body = _spec_body(spec)
        body["headers"] = {**body["headers"], **headers}
        return dict(self.call("POST", "experiments", **body))

    def experiments(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield experiments, newest first."""
        cursor = None
        while True:
            given = {name: value for name, value in filters.items() if value is not None}
            params = {**given, **({"cursor": cursor} if cursor else {})}
            page = self.call("GET", "experiments", params=params)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def show(self, experiment_id: str) -> dict[str, Any]:
        """Return an experiment."""
        return dict(self.call("GET", f"experiments/{experiment_id}"))

    def runs(self, experiment_id: str) -> list[dict[str, Any]]:
        """Return the runs of an experiment."""
        return list(self.call("GET", f"experiments/{experiment_id}/runs")["items"])

    def events(self, experiment_id: str) -> Iterator[dict[str, Any]]:
        """Yield the timeline of an experiment, oldest first."""
        cursor = None
        while True:
            params = {"limit": 2000, **({"after": cursor} if cursor else {})}
            page = self.call("GET", f"experiments/{experiment_id}/events", params=params)
            if not page["items"]:
                return
            yield from page["items"]
            cursor = page["next"]

    def logs(self, run_id: str, *, level: str = "debug", follow: bool = False) -> Iterator[dict[str, Any]]:
        """Yield log lines of a run: the newest 1,000, and with ``follow`` what comes after them until the run ends."""
        cursor = None
        while True:
            is_last = not follow or self.call("GET", f"runs/{run_id}")["status"] in TERMINAL_RUN
            params = {"level": level, "tail": _LOG_LINES, **({"after": cursor} if cursor else {})}
            page = self.call("GET", f"runs/{run_id}/logs", params=params)
            yield from page["items"]
            cursor = page["next"] or cursor
            if len(page["items"]) == _LOG_LINES and follow:
                continue  # there may be more
            if is_last:
                return
            time.sleep(_LOG_SECONDS)

    def steer(self, experiment_id: str, action: str, reason: str = "") -> dict[str, Any]:
        """Pause, resume or cancel an experiment."""
        return dict(self.call("POST", f"experiments/{experiment_id}/{action}", json={"reason": reason}))

    def series(self, experiment_id: str, metrics: list[str], **options: Any) -> dict[str, Any]:
        """Return metric series of all (or the named) runs."""
        params = {"metrics": metrics, **options}
        return dict(self.call("GET", f"experiments/{experiment_id}/series", params=params))

    def report(self, experiment_id: str, form: str = "json") -> Any:
        """Return the report: data for json, text otherwise."""
        response = self._http.get(f"experiments/{experiment_id}/report", params={"format": form})
        if response.status_code >= 400:
            raise ApiError(response.status_code, _problem(response))
        return response.json() if form == "json" else response.text

    def download(self, path: str, target: Path, **params: Any) -> int:
        """Stream a response to a file; return its size in bytes."""
        with self._http.stream("GET", path, params=params) as response:
            if response.status_code >= 400:
                response.read()
                raise ApiError(response.status_code, _problem(response))
            with target.open("wb") as file:
                return sum(file.write(chunk) for chunk in response.iter_bytes())

    def watch(self, experiment_id: str, *, metrics: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield live frames until ``end``; a lost connection is resumed from the cursor."""
        cursor: str | None = None
        failures = 0
        while True:
            try:
                for frame in self._stream(experiment_id, metrics or [], cursor):
                    failures = 0
                    cursor = frame.get("cursor") or cursor
                    yield frame
                    if frame["type"] == "end":
                        return
            except httpx.TransportError:
                failures += 1
                if failures > _RETRIES:
                    raise
            time.sleep(min(0.5 * 2**failures, 10.0))

    def _stream(self, experiment_id: str, metrics: list[str], cursor: str | None) -> Iterator[dict[str, Any]]:
        headers = {"Last-Event-ID": cursor} if cursor else {}
        timeout = httpx.Timeout(10.0, read=60.0)
        path = f"experiments/{experiment_id}/stream"
        with self._http.stream("GET", path, params={"metrics": metrics}, headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
                raise ApiError(response.status_code, _problem(response))
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])


def _spec_body(spec: Mapping[str, Any] | str) -> dict[str, Any]:
    text = spec if isinstance(spec, str) else json.dumps(spec, allow_nan=False)
    kind = "application/json" if not isinstance(spec, str) or looks_like_json(spec) else "application/yaml"
    return {"content": text.encode(), "headers": {"Content-Type": kind}}


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        document = {"detail": response.text[:500] or f"HTTP {response.status_code}"}
    return document if isinstance(document, dict) else {"detail": str(document)}
