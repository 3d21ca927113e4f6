"""Both clients through outages that a script must survive, on a clock that costs nothing; and what they return."""

from __future__ import annotations

import inspect
import json
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from lockstep import AsyncClient, Client
from lockstep.address import BadAddress
from lockstep.client import ApiError, Experiment, MissingPackage, Scores, Series, Verdict
from tests.awaiting import awaited

URL = "http://server.test"
HTML = b"<html><head><title>502 Bad Gateway</title></head></html>"
SHOWN = {
    "id": "exp_1",
    "name": "two <arms>",
    "status": "succeeded",
    "finished_at": "2026-01-01T00:00:00+00:00",
    "progress": {"fraction": 1.0},
    "arms": [{"label": "a"}, {"label": "b"}],
    "answer": {
        "code": "WINNER",
        "winner": "a",
        "sentence": "a is better by 3.",
        "settled": True,
        "promotable": True,
        "pair": {"a": "a", "b": "b", "estimate": 3.0, "ci_superiority": [1.0, None], "p_adj": 0.01},
        "sesoi": 2.0,
        "estimand": "shift",
        "unit": "%",
    },
}


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)


class Server:
    """What answers below ``/api/v1``: a server that submits once for each key, and an outage in front of it."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.outage: Callable[[httpx.Request], httpx.Response | None] = lambda _: None
        self.submitted: dict[str, dict[str, Any]] = {}
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return self.outage(request) or self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            key = request.headers.get("Idempotency-Key", f"none-{len(self.submitted)}")
            made = {"id": f"exp_{len(self.submitted)}", "status": "queued", "warnings": [], "blocks": []}
            return httpx.Response(201, json=self.submitted.setdefault(key, made))
        return httpx.Response(200, json=SHOWN)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def server(time: Time) -> Server:
    return Server(time)


class Both:
    """One call through the client that returns and through the one that is awaited."""

    def __init__(self, time: Time, server: Server, kind: str) -> None:
        self.time, self.server, self.kind = time, server, kind

    def __call__(self, name: str, *arguments: Any, patience: float = 300.0, **given: Any) -> Any:
        transport = httpx.MockTransport(self.server)
        if self.kind == "plain":
            with Client(URL, patience=patience, clock=self.time, sleep=self.time.sleep, transport=transport) as client:
                found = getattr(client, name)(*arguments, **given)
                return list(found) if isinstance(found, Iterator) else found
        return awaited(self._awaited(name, arguments, given, patience, transport))

    async def _awaited(self, name: str, arguments: Any, given: Any, patience: float, transport: Any) -> Any:
        options: Any = {"patience": patience, "clock": self.time, "sleep": self.time.asleep, "transport": transport}
        async with AsyncClient(URL, **options) as client:
            found = getattr(client, name)(*arguments, **given)
            return await found if inspect.isawaitable(found) else [item async for item in found]


@pytest.fixture(params=["plain", "awaited"])
def ask(time: Time, server: Server, request: pytest.FixtureRequest) -> Both:
    return Both(time, server, request.param)


def until(time: Time, seconds: float, act: Callable[[httpx.Request], httpx.Response]) -> Any:
    return lambda request: act(request) if time() < seconds else None


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused", request=request)


@pytest.mark.parametrize("seconds", [25.0, 120.0])
def test_restart_of_minutes_is_waited_out_and_nothing_is_submitted_twice(
    ask: Both, time: Time, server: Server, seconds: float
) -> None:
    server.outage = until(time, seconds, refuse)
    assert ask("submit", {"arms": []})["id"] == "exp_0"
    assert len(server.submitted) == 1
    assert seconds <= time() <= seconds + 10.0
    assert max(time.naps) <= 10.0


def test_answer_that_is_lost_after_the_act_is_asked_for_again_under_the_same_key(ask: Both, server: Server) -> None:
    def lose(request: httpx.Request) -> httpx.Response | None:
        if server.asked > 3:
            return None
        server.answer(request)
        raise httpx.ReadError("connection reset", request=request)

    server.outage = lose
    assert ask("submit", {"arms": []})["id"] == "exp_0"
    assert ask("extend", "exp_0", 3) == []
    assert len(server.submitted) == 2


def test_proxy_that_answers_html_for_a_minute_is_waited_out(ask: Both, time: Time, server: Server) -> None:
    answers = iter([502, 503] * 100)
    server.outage = until(
        time, 60.0, lambda _: httpx.Response(next(answers), content=HTML, headers={"content-type": "text/html"})
    )
    assert ask("show", "exp_1").status == "succeeded"
    assert 60.0 <= time() <= 70.0


def test_first_request_with_the_key_that_still_runs_is_waited_for(ask: Both, time: Time, server: Server) -> None:
    server.outage = until(time, 3.0, lambda _: httpx.Response(409, json={"code": "in_progress", "detail": "runs"}))
    assert ask("submit", {"arms": []})["id"] == "exp_0"


def test_end_of_patience_is_told_in_one_sentence_without_the_page_of_the_proxy(
    ask: Both, time: Time, server: Server
) -> None:
    server.outage = lambda _: httpx.Response(502, content=HTML, headers={"content-type": "text/html"})
    with pytest.raises(ApiError) as refusal:
        ask("show", "exp_1", patience=20.0)
    assert str(refusal.value).startswith("502 Bad Gateway: a proxy answered, not the server")
    assert refusal.value.is_away
    assert 20.0 <= time() <= 30.0
    server.outage = refuse
    with pytest.raises(httpx.ConnectError, match="refused"):
        ask("show", "exp_1", patience=0.0)


def test_deletion_whose_answer_was_lost_has_succeeded_where_nothing_is_left(ask: Both, server: Server) -> None:
    def lose(request: httpx.Request) -> httpx.Response:
        if server.asked == 1:
            raise httpx.ReadError("connection reset", request=request)
        return httpx.Response(404, json={"detail": "no webhook"})

    server.outage = lose
    assert ask("call", "DELETE", "webhooks/whk_1") is None
    with pytest.raises(ApiError, match="no webhook"):
        ask("call", "DELETE", "webhooks/whk_1")


def test_what_may_not_be_repeated_is_sent_once(ask: Both, server: Server) -> None:
    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("connection reset", request=request)

    server.outage = lose
    with pytest.raises(httpx.ReadError):
        ask("call", "POST", "tokens", json={"name": "x"})
    assert server.asked == 1


def test_refusal_is_no_outage(ask: Both, time: Time, server: Server) -> None:
    problem = {"detail": "d", "errors": [{"pointer": "/arms", "message": "two at least", "remedy": "add one"}]}
    server.outage = lambda _: httpx.Response(422, json=problem)
    with pytest.raises(ApiError, match=r"^/arms: two at least \(add one\)$"):
        ask("submit", {})
    assert time.naps == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"status_code": 200, "content": HTML, "headers": {"content-type": "text/html"}}, "is text/html, not JSON"),
        (
            {"status_code": 301, "headers": {"location": "https://lab.test/"}},
            "leads on to https://lab.test/; name that",
        ),
    ],
)
def test_address_of_something_else_is_told(ask: Both, server: Server, answer: dict[str, Any], told: str) -> None:
    server.outage = lambda _: httpx.Response(**answer)
    with pytest.raises(ApiError, match=told):
        ask("show", "exp_1")


def test_three_hundred_dropped_sockets_lose_no_frame_and_repeat_none(ask: Both, time: Time, server: Server) -> None:
    class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
        """One frame, cut inside of a letter, then a lost connection."""

        def __init__(self, index: int) -> None:
            kind = "end" if index == 300 else "delta"
            frame = {"type": kind, "cursor": str(index + 1), "index": index, "text": "ü"}
            data = f"event: {kind}\r\ndata: {json.dumps(frame, ensure_ascii=False)}\r\n\r\n".encode()
            at = data.index("ü".encode()) + 1
            self.pieces = [data[:at], data[at:]]

        def __iter__(self) -> Iterator[bytes]:
            yield from self.pieces
            raise httpx.ReadError("dropped")

        async def __aiter__(self) -> Any:
            for piece in self:
                yield piece

    server.outage = lambda request: httpx.Response(200, stream=Cut(int(request.headers.get("last-event-id", 0))))
    frames = ask("watch", "exp_1", patience=5.0)
    assert [frame["index"] for frame in frames] == list(range(301))
    assert {frame["text"] for frame in frames} == {"ü"}
    assert server.asked == 301


def test_wait_returns_at_the_end_and_gives_up_at_its_time(ask: Both, time: Time, server: Server) -> None:
    server.outage = until(
        time, 40.0, lambda _: httpx.Response(200, json={**SHOWN, "status": "running", "finished_at": None})
    )
    with pytest.raises(TimeoutError, match=r"exp_1 is running after 12 s; it goes on"):
        ask("wait", "exp_1", timeout=12)
    assert time() == 12.0
    assert ask("wait", "exp_1").is_over


def test_plain_client_works_inside_a_running_loop(time: Time, server: Server) -> None:
    async def notebook() -> str:
        with Client(URL, clock=time, sleep=time.sleep, transport=httpx.MockTransport(server)) as client:
            return client.show("exp_1").status

    assert awaited(notebook()) == "succeeded"


def test_methods_tell_their_names_and_what_they_take() -> None:
    for client in (Client(URL), AsyncClient(URL)):
        assert list(inspect.signature(client.submit).parameters) == ["spec", "key"]
        assert str(client.watch.__doc__).startswith("Yield live frames")
        assert client.show.__name__ == "show"


REPORT: dict[str, Any] = {
    "name": "n",
    "verdict": {"code": "WINNER", "winner": "a", "sentence": "a.", "settled": True},
    "registration": {
        "arms": [{"label": "a"}, {"label": "b"}],
        "analysis": {"primary": {"metric": "eval/accuracy"}},
    },
    "scores": [
        {"arm": "a", "replicate": 0, "status": "ok", "value": 1.5},
        {"arm": "b", "replicate": 0, "status": "failed", "value": 0.0},
        {"arm": "a", "replicate": 2, "status": "ok", "value": 2.5},
    ],
}
SERIES: dict[str, Any] = {
    "x": "step",
    "series": [
        {
            "run_id": f"run_{arm}",
            "group_id": arm,
            "replicate": 1,
            "metric": "eval/accuracy",
            "x": [1, 2, 3],
            "mean": [0.5, None, None],
            "min": [0.5, None, None],
            "max": [0.5, None, None],
            "nf": [[1, "nan"], [2, "-inf"]],
            "total": 3,
        }
        for arm in ("a", "b")
    ],
}


def test_scores_are_arrays_with_nan_where_a_run_gave_none() -> None:
    scores = Scores.of(REPORT)
    assert (scores.metric, scores.arms, scores.replicates.tolist()) == ("eval/accuracy", ("a", "b"), [0, 2])
    np.testing.assert_array_equal(scores["a"], [1.5, 2.5])
    assert np.isnan(scores["b"]).all()
    assert scores.failed.tolist() == [[False, True], [False, False]]


def test_series_are_arrays_that_keep_nan_and_infinity() -> None:
    series = Series(SERIES)
    assert (len(series), series.x) == (2, "step")
    assert repr(series) == "Series(eval/accuracy: arms a, b; 1 replicates, 6 points by step)"
    [curve] = series.of("b")
    np.testing.assert_array_equal(curve.mean, [0.5, math.nan, -math.inf])
    assert series.columns()["arm"].tolist() == ["a"] * 3 + ["b"] * 3
    assert Series({"x": "step", "series": []}).columns()["x"].shape == (0,)


def test_metric_that_no_run_recorded_is_refused_with_the_nearest(ask: Both, server: Server) -> None:
    curve = {"run_id": "run_1", "group_id": "a", "replicate": 0, "total": 0, "x": [], "mean": [], "min": [], "max": []}
    run = {"status": "running", "metrics": ["train/return_mean", "sys/fps"]}

    def answer(request: httpx.Request) -> httpx.Response:
        metrics = request.url.params.get_list("metrics")
        series = {"x": "step", "series": [{**curve, "metric": metric} for metric in metrics]}
        return httpx.Response(200, json=run if "/runs/" in request.url.path else series)

    server.outage = answer
    with pytest.raises(ValueError, match=r"no run has recorded a metric 'train/retrun_mean'; did you mean 'train/re"):
        ask("series", "exp_1", ["train/retrun_mean"])
    assert len(ask("series", "exp_1", ["eval/accuracy"])) == 1  # its first evaluation is still to come
    run["status"] = "succeeded"
    with pytest.raises(ValueError, match="'eval/accuracy'; known: sys/fps, train/return_mean"):
        ask("series", "exp_1", ["eval/accuracy"])
    run["metrics"] = []
    assert len(ask("series", "exp_1", ["eval/accuracy"])) == 1


def test_tables_of_pandas_are_made_of_the_columns_and_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        Series(SERIES).to_pandas()
    library = types.SimpleNamespace(DataFrame=lambda columns: types.SimpleNamespace(set_index=lambda _: columns))
    monkeypatch.setitem(sys.modules, "pandas", library)
    assert list(Scores.of(REPORT).to_pandas()) == ["replicate", "a", "b"]
    made = Series(SERIES).to_pandas()
    assert made.set_index("") is not None


def test_notebook_shows_an_experiment_with_its_verdict_and_escapes_names() -> None:
    shown = Experiment(SHOWN)
    html = shown._repr_html_()
    assert "two &lt;arms&gt;" in html
    assert "<b>WINNER</b> a is better by 3." in html
    assert 'aria-label="a - b: 3 [1, inf] %"' in html
    assert shown.verdict is not None
    assert shown.verdict.interval == (1.0, math.inf)
    waits = Experiment({**SHOWN, "answer": None, "status": "queued", "why_waiting": {"text": "no <worker>"}})
    assert "no &lt;worker&gt;" in waits._repr_html_()
    assert Verdict(REPORT["verdict"])._repr_html_() == "<div><b>WINNER</b> a.</div>"


@pytest.mark.parametrize("given", ["", "..", "../queue", "exp_1?x=1", "exp_1#", "exp 1"])
def test_id_that_would_lead_elsewhere_is_refused(given: str) -> None:
    with pytest.raises(BadAddress, match="is no path of the API; give an id"):
        Client("http://127.0.0.1:9", patience=0.0).show(given)
