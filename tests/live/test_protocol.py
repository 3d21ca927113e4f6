"""The live protocol against a live server: cursor, resume, truncation, end, refusals, backpressure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from app.services import access
from app.services.context import Context
from lockstep.client import Client
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

pytestmark = pytest.mark.server


@contextmanager
def socket_of(server: LiveServer, experiment_id: str, query: str = "", **given: Any) -> Iterator[ClientConnection]:
    address = f"{server.url.replace('http', 'ws')}/api/v1/experiments/{experiment_id}/ws{query}"
    with connect(address, max_size=None, open_timeout=60, **given) as socket:
        yield socket


def subscribe(socket: ClientConnection, **given: Any) -> None:
    socket.send(json.dumps({"type": "subscribe", "metrics": [], "after": None, **given}))


def frames_until(socket: ClientConnection, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    while not frames or not wanted(frames[-1]):
        frame = json.loads(socket.recv(timeout=60))
        if frame["type"] != "ping":
            frames.append(frame)
    return frames


def running(ctx: Context, **changes: Any) -> tuple[str, SimulatedWorker]:
    experiment_id = submit(ctx, tiny_spec(**changes))
    worker = SimulatedWorker(ctx).register()
    wait_until(worker.claim, what="an assignment")  # the server's own tick may hold the lock just now
    worker.ready()
    return experiment_id, worker


def points(frames: list[dict[str, Any]]) -> list[tuple[str, str, int, float | None]]:
    return [
        (item["run_id"], item["metric"], seq, value)
        for frame in frames
        if frame["type"] == "delta"
        for item in frame["points"]
        for seq, value in zip(item["seq"], item["value"], strict=True)
    ]


def test_reader_sees_every_point_once_and_one_end(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx, budget={"rounds": 3})
    with socket_of(server, experiment_id) as socket:
        subscribe(socket)
        frames = frames_until(socket, lambda frame: frame["type"] == "snapshot")
        worker.train(rounds=3)
        frames += frames_until(socket, lambda frame: frame["type"] == "end")
    seen = points(frames)
    assert len(seen) == len(set(seen)) == 3 * 2 * 2
    assert [frame["type"] for frame in frames].count("end") == 1
    assert frames[-1]["status"] == "succeeded"


def test_reader_resumed_from_a_cursor_misses_nothing(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx, budget={"rounds": 4})
    with socket_of(server, experiment_id) as socket:
        subscribe(socket)
        frames_until(socket, lambda frame: frame["type"] == "snapshot")
        worker.hand_in(0)
        first = frames_until(socket, lambda frame: frame["type"] == "delta" and bool(frame["points"]))
    worker.hand_in(1)
    worker.hand_in(2)
    with socket_of(server, experiment_id) as socket:
        subscribe(socket, after=first[-1]["cursor"])
        later = frames_until(socket, lambda frame: any(r["round"] == 2 for r in frame.get("rounds", [])))
    seen = points(first) + points(later)
    assert len(seen) == len(set(seen)) == 3 * 2 * 2
    assert "snapshot" not in [frame["type"] for frame in later]


def test_reader_after_the_end_gets_snapshot_series_and_end(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx)
    worker.train(rounds=2)
    with Client(server.url) as client:
        list(client.watch(experiment_id))
    with socket_of(server, experiment_id) as socket:
        subscribe(socket, metrics=["train/return_mean"])
        frames = frames_until(socket, lambda frame: frame["type"] == "end")
    snapshot = frames[1]
    assert [len(series["x"]) for series in snapshot["series"]] == [2, 2]
    assert snapshot["experiment"]["status"] == "succeeded"


def test_metric_filter_delivers_only_what_was_asked_for(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx)
    with socket_of(server, experiment_id) as socket:
        subscribe(socket, metrics=["eval/accuracy"])
        frames_until(socket, lambda frame: frame["type"] == "snapshot")
        worker.hand_in(0)
        frames = frames_until(socket, lambda frame: frame["type"] == "delta" and bool(frame["points"]))
    assert {item[1] for item in points(frames)} == {"eval/accuracy"}


def test_resumed_block_sends_truncate(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx, budget={"rounds": 3})
    worker.hand_in(0)
    worker.checkpoint(1)
    worker.hand_in(1)
    with socket_of(server, experiment_id) as socket:
        subscribe(socket)
        frames_until(socket, lambda frame: frame["type"] == "snapshot")
        worker.release("error", "worker_lost", "killed")
        wait_until(worker.claim, what="an assignment")
        frames = frames_until(socket, lambda frame: frame["type"] == "truncate")
    assert (frames[-1]["from_round"], frames[-1]["attempt"]) == (1, 2)


def test_nonfinite_values_travel_as_null_with_their_word(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx)
    from app.services.training import ingest
    from lockstep import protocol as p

    held = worker.held
    series = p.Points(
        run_id=held.runs[0].run_id,
        first_seq=1,
        names=["live/loss"],
        name_index=[0, 0, 0, 0],
        step=[1, 2, 3, 4],
        round=[0, 0, 0, 0],
        t=[0.0, 0.1, 0.2, 0.3],
        value=[1.5, None, None, None],
        nf=[(1, "nan"), (2, "inf"), (3, "-inf")],
    )
    reply = ingest.post_points(server.ctx, held.assignment_id, held.lease, p.PointsRequest(series=[series]))
    assert reply.acknowledged == {held.runs[0].run_id: 4}
    with httpx.Client(base_url=server.url) as http:
        found = http.get(f"/api/v1/experiments/{experiment_id}/series", params={"metrics": ["live/loss"]}).json()
    mine = next(item for item in found["series"] if item["total"])
    assert mine["mean"] == [1.5, None, None, None]
    assert mine["nf"] == [[1, "nan"], [2, "inf"], [3, "-inf"]]
    assert sum(mine["n_nonfinite"]) == 3


@pytest.mark.parametrize(
    ("sent", "code"),
    [("not json", 4400), ('{"type":"shout"}', 4400), ('{"type":"subscribe","protocol":9}', 4409)],
)
def test_bad_frame_closes_with_its_code(sqlite_server: LiveServer, sent: str, code: int) -> None:
    experiment_id = submit(sqlite_server.ctx)
    with socket_of(sqlite_server, experiment_id) as socket:
        socket.recv(timeout=60)
        socket.send(sent)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


def test_unknown_experiment_closes_with_4404(sqlite_server: LiveServer) -> None:
    with socket_of(sqlite_server, "exp_0000000000000000") as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4404


def test_a_frame_of_long_words_is_refused_with_as_much_as_a_closing_frame_holds(sqlite_server: LiveServer) -> None:
    experiment_id = submit(sqlite_server.ctx)
    key = "長" * 1_000
    with socket_of(sqlite_server, experiment_id) as socket, pytest.raises(ConnectionClosed) as closed:  # noqa: PT012 - hello comes first
        socket.send(f'{{"{key}": 1, "{key}": 2}}')
        frames_until(socket, lambda _: False)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason.startswith("bad frame: the key '長長")


def test_foreign_origin_is_refused(sqlite_server: LiveServer) -> None:
    experiment_id = submit(sqlite_server.ctx)
    headers = {"Origin": "https://evil.example"}
    with (
        socket_of(sqlite_server, experiment_id, additional_headers=headers) as socket,
        pytest.raises(ConnectionClosed) as closed,
    ):
        socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4403


def test_ticket_opens_a_socket_once(make_server: Callable[..., LiveServer], database_url: str) -> None:
    server = make_server(database_url, auth="token")
    experiment_id = submit(server.ctx)
    secret = access.create(server.ctx, "viewer", "viewer", None, LOCAL).secret
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=server.url, headers=headers) as http:
        ticket = http.post("/api/v1/live-tickets", json={"experiment": experiment_id}).json()["ticket"]
    with socket_of(server, experiment_id, f"?ticket={ticket}") as socket:
        assert json.loads(socket.recv(timeout=60))["type"] == "hello"
    with socket_of(server, experiment_id, f"?ticket={ticket}") as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401


def test_server_that_stops_closes_with_1012_and_the_cursor_goes_on(
    make_server: Callable[..., LiveServer], database_url: str
) -> None:
    server = make_server(database_url)
    experiment_id, worker = running(server.ctx, budget={"rounds": 3})
    with socket_of(server, experiment_id) as socket:
        subscribe(socket)
        cursor = frames_until(socket, lambda frame: frame["type"] == "snapshot")[-1]["cursor"]
        worker.hand_in(0)
        frames_until(socket, lambda frame: frame["type"] == "delta" and bool(frame["points"]))
        server.stop()
        with pytest.raises(ConnectionClosed) as closed:
            frames_until(socket, lambda _: False)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    again = make_server(database_url)
    with socket_of(again, experiment_id) as socket:
        subscribe(socket, after=cursor)
        frames = frames_until(socket, lambda frame: frame["type"] == "delta" and bool(frame["points"]))
    assert len(points(frames)) == 4
