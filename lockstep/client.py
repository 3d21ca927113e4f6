"""Clients of the API for scripts, notebooks and the command line: ``Client``, and ``AsyncClient`` to be awaited.

Both have the same methods, each written once. An outage of minutes is waited out: what may be repeated is, under an
idempotency key where it changes something, so that nothing is lost and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from lockstep.address import clean_token, clean_url, hidden, proxy_of
from lockstep.answers import Curve as Curve
from lockstep.answers import Experiment as Experiment
from lockstep.answers import MissingPackage as MissingPackage
from lockstep.answers import Plan as Plan
from lockstep.answers import Report as Report
from lockstep.answers import Run as Run
from lockstep.answers import Scores as Scores
from lockstep.answers import Series as Series
from lockstep.answers import Submitted as Submitted
from lockstep.answers import Verdict as Verdict
from lockstep.exchange import (
    AWAY,
    Async,
    Call,
    Item,
    Open,
    Outage,
    Read,
    Reply,
    Request,
    Runs,
    Sleep,
    Steps,
    Sync,
    adrive,
    answer,
    as_item,
    drive,
    json_of,
    listing,
    reason_of,
    steady,
    with_headers,
)
from lockstep.exchange import ApiError as ApiError
from lockstep.quoting import quoted
from lockstep.spec.text.problems import nearest
from lockstep.spec.text.reading import looks_like_json
from lockstep.status import TERMINAL_RUN

DEFAULT_URL = "http://127.0.0.1:7480"
#: How long an outage is waited out unless the client is told otherwise.
PATIENCE_SECONDS = 300.0
_LOG_SECONDS, _LOG_LINES = 1.0, 1000
_FIRST_LOOK, _LONGEST_LOOK = 0.5, 5.0
Frame = dict[str, Any]
Thing = dict[str, Any]


class _Api(Runs):
    """The calls of one server.

    Args:
        url: base URL, default ``LOCKSTEP_URL`` or this machine.
        token: bearer token, default ``LOCKSTEP_TOKEN``.
        timeout: seconds until a request without any answer counts as lost.
        patience: seconds for which an outage is waited out; 0: its first failure is raised.
        clock: monotonic seconds.

    Raises:
        BadAddress: URL, token or the proxy on the way cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = clean_url(url or os.environ.get("LOCKSTEP_URL") or DEFAULT_URL, "url" if url else "LOCKSTEP_URL")
        secret = clean_token(token or os.environ.get("LOCKSTEP_TOKEN"), "token" if token else "LOCKSTEP_TOKEN")
        proxy = proxy_of(self.url)
        self._proxy = None if proxy is None else proxy.url
        self._patience = steady(patience, clock, hidden(self.url))
        self._clock = clock
        self._settings: dict[str, Any] = {
            "base_url": f"{self.url}/api/v1/",
            "headers": {"Authorization": f"Bearer {secret}"} if secret else {},
            "timeout": timeout,
        }

    def _json(self, method: str, path: str, **options: Any) -> Steps[Any]:
        return json_of(Request(method, path, options), self._patience)

    def _once(self, path: str, key: str | None = None, **options: Any) -> Steps[Any]:
        """POST under an idempotency key, made up where none is given."""
        request = with_headers(Request("POST", path, options), Idempotency_Key=key or secrets.token_hex(16))
        return json_of(request, self._patience)

    @Call
    def call(self, /, method: str, path: str, **options: Any) -> Steps[Any]:
        """Call the API and return its JSON (None without a body).

        Args:
            method: HTTP method.
            path: below ``/api/v1/``.
            options: as httpx takes them: ``params``, ``json``, ``headers``.

        Raises:
            ApiError: the server refused.
            httpx.TransportError: no answer.
        """
        return self._json(method, path, **options)

    @Call
    def readiness(self, /) -> Steps[Thing]:
        """Return what ``/readyz`` shows of database, schema, files and sweep, also where one of them is not ``ok``."""
        reply: Reply = yield from answer(Request("GET", "readyz", is_probe=True), self._patience)
        found = reply.data() if reply.status in (200, 503) else reply.checked().data()
        if not isinstance(found, dict) or "database" not in found:
            raise ApiError(reply.status, {"detail": "something else than Lockstep answers there; check the URL"})
        return found

    @Call
    def plan(self, /, spec: Mapping[str, Any] | str) -> Steps[Plan]:
        """Validate a spec (data, or YAML/JSON text) and return what it would run."""
        request = Request("POST", "plans", _spec_body(spec), is_harmless=True)
        return Plan((yield from json_of(request, self._patience)))

    @Call
    def submit(self, /, spec: Mapping[str, Any] | str, *, key: str | None = None) -> Steps[Submitted]:
        """Submit a spec (data, or YAML/JSON text).

        Args:
            spec: what to submit.
            key: idempotency key: a later call with the same key and spec returns the same experiment.
        """
        return Submitted((yield from self._once("experiments", key, **_spec_body(spec))))

    @listing(Experiment)
    def experiments(self, /, **filters: Any) -> Steps[None]:
        """Yield experiments, newest first; filters: ``status``, ``owner``, ``tag``, ``q``, ``limit`` (of a page)."""
        yield from self._pages("experiments", Experiment, filters)

    @Call
    def show(self, /, experiment_id: str) -> Steps[Experiment]:
        """Return an experiment."""
        return Experiment((yield from self._json("GET", f"experiments/{experiment_id}")))

    @Call
    def wait(self, /, experiment_id: str, *, timeout: float | None = None) -> Steps[Experiment]:
        """Return an experiment when it has ended and its report is written.

        Args:
            experiment_id: which.
            timeout: seconds, None: as long as it takes.

        Raises:
            TimeoutError: it has not ended by then; it goes on.
        """
        until = None if timeout is None else self._clock() + timeout
        pause = _FIRST_LOOK
        while True:
            experiment = Experiment((yield from self._json("GET", f"experiments/{experiment_id}")))
            if experiment.is_over:
                return experiment
            if until is not None and self._clock() >= until:
                raise TimeoutError(f"experiment {experiment_id} is {experiment.status} after {timeout:g} s; it goes on")
            yield Sleep(pause if until is None else max(0.0, min(pause, until - self._clock())))
            pause = min(_LONGEST_LOOK, 1.5 * pause)

    @Call
    def runs(self, /, experiment_id: str) -> Steps[list[Run]]:
        """Return the runs of an experiment."""
        found = []
        for item in (yield from self._all(f"experiments/{experiment_id}/runs", {"limit": 2000})):
            found.append(Run(item))  # noqa: PERF401 - a comprehension cannot hold the steps
        return found

    @Call
    def workers(self, /, *, retired: bool = False) -> Steps[list[Thing]]:
        """Return the workers, with ``retired`` those that have gone, too."""
        return (yield from self._all("workers", {"retired": retired}))

    @Call
    def webhooks(self, /) -> Steps[list[Thing]]:
        """Return who is told of ends, failures and verdicts."""
        return (yield from self._all("webhooks", {}))

    @listing(dict[str, Any])
    def audit(self, /, **filters: Any) -> Steps[None]:
        """Yield the record of steering acts, newest first; filters: ``actor``, ``target``, ``limit`` (of a page)."""
        yield from self._pages("audit", dict, filters)

    @listing(dict[str, Any])
    def events(self, /, experiment_id: str) -> Steps[None]:
        """Yield the timeline of an experiment, oldest first."""
        cursor = None
        while True:
            params = {"limit": 2000, **({"after": cursor} if cursor else {})}
            page = yield from self._json("GET", f"experiments/{experiment_id}/events", params=params)
            if not page["items"]:
                return
            for item in page["items"]:
                yield Item(item)
            cursor = page["next"]

    @listing(dict[str, Any])
    def logs(self, /, run_id: str, *, level: str = "debug", follow: bool = False) -> Steps[None]:
        """Yield log lines of a run: the newest 1,000, and with ``follow`` what comes after them until the run ends."""
        cursor = None
        while True:
            is_last = not follow or (yield from self._json("GET", f"runs/{run_id}"))["status"] in TERMINAL_RUN
            params = {"level": level, "tail": _LOG_LINES, **({"after": cursor} if cursor else {})}
            page = yield from self._json("GET", f"runs/{run_id}/logs", params=params)
            for item in page["items"]:
                yield Item(item)
            cursor = page["next"] or cursor
            if len(page["items"]) == _LOG_LINES and follow:
                continue  # there may be more
            if is_last:
                return
            yield Sleep(_LOG_SECONDS)

    @Call
    def steer(self, /, experiment_id: str, action: str, reason: str = "") -> Steps[Thing]:
        """Pause, resume or cancel an experiment."""
        return dict((yield from self._once(f"experiments/{experiment_id}/{action}", json={"reason": reason})))

    @Call
    def extend(self, /, experiment_id: str, replicates: int, *, exploratory: bool = False) -> Steps[list[str]]:
        """Append replicates where the registered analysis allows it; return the ids of their blocks."""
        body = {"replicates": replicates, "exploratory": exploratory}
        return list((yield from self._once(f"experiments/{experiment_id}/extend", json=body))["blocks"])

    @Call
    def retry(self, /, experiment_id: str) -> Steps[list[str]]:
        """Run the failed blocks of an experiment again; return the ids of the new ones."""
        return list((yield from self._once(f"experiments/{experiment_id}/retry"))["blocks"])

    @Call
    def clone(self, /, experiment_id: str, overrides: Mapping[str, Any] | None = None) -> Steps[Submitted]:
        """Submit a copy of an experiment, with sections laid over its spec."""
        body = {"overrides": dict(overrides or {})}
        return Submitted((yield from self._once(f"experiments/{experiment_id}/clone", json=body)))

    @Call
    def series(self, /, experiment_id: str, metrics: Sequence[str], **options: Any) -> Steps[Series]:
        """Return curves of metrics as arrays, of all runs or those named.

        Args:
            experiment_id: of which experiment.
            metrics: names.
            options: ``runs`` (ids), ``x`` (step, round or time), ``low``, ``high``, ``max_points``, ``attempts``.

        Raises:
            ValueError: no run has recorded one of the metrics, although it has others.
        """
        params = {"metrics": list(metrics), **options}
        series = Series((yield from self._json("GET", f"experiments/{experiment_id}/series", params=params)))
        for metric in metrics:
            if not any(curve.total for curve in series if curve.metric == metric):
                yield from self._check_recorded(metric, [curve.run_id for curve in series if curve.metric == metric])
        return series

    def _check_recorded(self, metric: str, run_ids: Sequence[str]) -> Steps[None]:
        """Raise where none of some runs has recorded a metric although it has others; an evaluation may still come."""
        recorded: set[str] = set()
        for run_id in run_ids:
            run = yield from self._json("GET", f"runs/{run_id}")
            if metric in run["metrics"] or (metric.startswith("eval/") and run["status"] not in TERMINAL_RUN):
                return
            recorded |= set(run["metrics"])
        if recorded:
            raise ValueError(f"no run has recorded a metric {quoted(metric)}; {nearest(metric, recorded)}")

    @Call
    def scores(self, /, experiment_id: str) -> Steps[Scores]:
        """Return the scores that the newest report judges, as arrays."""
        return Scores.of((yield from self._json("GET", f"experiments/{experiment_id}/report")))

    @Call
    def report(self, /, experiment_id: str, form: str = "json") -> Steps[Any]:
        """Return the report: a ``Report`` for json, text for md, html, csv and py."""
        request = Request("GET", f"experiments/{experiment_id}/report", {"params": {"format": form}})
        reply = (yield from answer(request, self._patience)).checked()
        return Report(reply.data()) if form == "json" else reply.body.decode()

    @Call
    def download(self, /, path: str, target: Path, **params: Any) -> Steps[int]:
        """Stream a response to a file, anew after a lost connection; return its size in bytes."""
        request = Request("GET", path, {"params": params})
        outage = Outage(self._patience)
        while True:
            try:
                reply: Reply = yield Open(request)
                if reply.status not in AWAY or (yield from self._out(outage, reply)):
                    reply.checked()
                    return (yield from _save(target))
            except httpx.TransportError as error:
                if (yield from self._out(outage, error)):
                    raise

    @listing(dict[str, Any])
    def watch(self, /, experiment_id: str, *, metrics: Sequence[str] | None = None) -> Steps[None]:
        """Yield live frames until ``end``; a lost connection is resumed from the cursor."""
        cursor: str | None = None
        outage = Outage(self._patience)
        params = {"metrics": list(metrics or [])}
        options = {"params": params, "timeout": httpx.Timeout(10.0, read=60.0)}
        while True:
            request = Request("GET", f"experiments/{experiment_id}/stream", options)
            try:
                reply: Reply = yield Open(with_headers(request, Last_Event_ID=cursor))
                if reply.status in AWAY:
                    if (yield from self._out(outage, reply)):
                        reply.checked()
                    continue
                reply.checked()
                lines = _Lines()
                while (chunk := (yield Read())) is not None:
                    for line in lines.take(chunk):
                        frame: Frame = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                        if not frame:
                            continue
                        outage.over()
                        cursor = frame.get("cursor") or cursor
                        yield Item(frame)
                        if frame["type"] == "end":
                            return
                yield Sleep(_FIRST_LOOK)  # the server closed it, as it does when it restarts
            except httpx.TransportError as error:
                if (yield from self._out(outage, error)):
                    raise

    def _out(self, outage: Outage, cause: Reply | httpx.TransportError) -> Steps[bool]:
        """Wait for the end of an outage; return True when patience is at its end."""
        told = f"HTTP {cause.status}" if isinstance(cause, Reply) else reason_of(cause)
        wait = outage.next_wait(told)
        if wait is None:
            return True
        yield Sleep(wait)
        return False

    def _pages(self, path: str, kind: Callable[[Any], Any], filters: Mapping[str, Any]) -> Steps[None]:
        """Yield everything that a list of pages holds."""
        given = {name: value for name, value in filters.items() if value is not None}
        cursor = None
        while True:
            page = yield from self._json("GET", path, params={**given, **({"cursor": cursor} if cursor else {})})
            for item in page["items"]:
                yield Item(kind(item))
            cursor = page.get("next")
            if cursor is None:
                return

    def _all(self, path: str, params: Mapping[str, Any]) -> Steps[list[Any]]:
        """Return everything that a list of pages holds."""
        items: list[Any] = []
        cursor = None
        while True:
            page = yield from self._json("GET", path, params={**params, **({"cursor": cursor} if cursor else {})})
            items += page["items"]
            cursor = page.get("next")
            if cursor is None:
                return items


class Client(_Api, Sync):
    """Calls of one server, each of which returns when it is answered; also inside a notebook.

    Args:
        url: base URL, default ``LOCKSTEP_URL`` or this machine.
        token: bearer token, default ``LOCKSTEP_TOKEN``.
        timeout: seconds until a request without any answer counts as lost.
        patience: seconds for which an outage is waited out; 0: its first failure is raised.
        clock: monotonic seconds.
        sleep: waits so many seconds.
        transport: how bytes travel; default: over the network.

    Raises:
        BadAddress: URL, token or the proxy on the way cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout=timeout, patience=patience, clock=clock)
        self._sleep = sleep
        if transport is None and self._proxy is None:
            transport = httpx.HTTPTransport()  # else httpx looks for a proxy of its own, on the way to this machine too
        self._http = httpx.Client(transport=transport, proxy=self._proxy, **self._settings)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, steps: Steps[Any]) -> Any:
        """Return what the steps of a call return."""
        [found] = self.each(as_item(steps))
        return found

    def each(self, steps: Steps[Any]) -> Iterator[Any]:
        """Yield the items among the steps of a call."""
        return drive(steps, self._http, self._sleep)


class AsyncClient(_Api, Async):
    """Calls of one server that are awaited; what ``Client`` yields is for ``async for``.

    Args:
        url: base URL, default ``LOCKSTEP_URL`` or this machine.
        token: bearer token, default ``LOCKSTEP_TOKEN``.
        timeout: seconds until a request without any answer counts as lost.
        patience: seconds for which an outage is waited out; 0: its first failure is raised.
        clock: monotonic seconds.
        sleep: waits so many seconds.
        transport: how bytes travel; default: over the network.

    Raises:
        BadAddress: URL, token or the proxy on the way cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout=timeout, patience=patience, clock=clock)
        self._sleep = sleep
        if transport is None and self._proxy is None:
            transport = httpx.AsyncHTTPTransport()  # as above
        self._http = httpx.AsyncClient(transport=transport, proxy=self._proxy, **self._settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, steps: Steps[Any]) -> Any:
        """Return what the steps of a call return."""
        async with aclosing(self.each(as_item(steps))) as found:
            return await anext(found)

    def each(self, steps: Steps[Any]) -> Any:
        """Yield the items among the steps of a call."""
        return adrive(steps, self._http, self._sleep)


class _Lines:
    """Whole lines of a text that comes in pieces."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest = ""

    def take(self, piece: bytes) -> list[str]:
        """Return the lines that are whole now."""
        *lines, self._rest = (self._rest + self._decode(piece)).split("\n")
        return [line.removesuffix("\r") for line in lines]


def _save(target: Path) -> Steps[int]:
    size = 0
    with target.open("wb") as file:
        while (chunk := (yield Read())) is not None:
            size += file.write(chunk)
    return size


def _spec_body(spec: Mapping[str, Any] | str) -> dict[str, Any]:
    text = spec if isinstance(spec, str) else json.dumps(spec, allow_nan=False)
    kind = "application/json" if not isinstance(spec, str) or looks_like_json(spec) else "application/yaml"
    return {"content": text.encode(), "headers": {"Content-Type": kind}}
