"""A reader that was away while a block was taken up again gets the rest of the older attempt, then the new one."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import httpx
import pytest

from app.errors import InvalidError
from app.services.experiments import live
from app.services.experiments.cursors import encode_cursor, encode_numbers
from app.store.records import points as points_of
from tests.conftest import LiveServer, wait_until
from tests.factories import SimulatedWorker
from tests.live.test_protocol import frames_until, points, running, socket_of, subscribe

pytestmark = pytest.mark.server

Frames: TypeAlias = list[dict[str, Any]]
ROUNDS = 4


def over_socket(server: LiveServer, experiment_id: str, cursor: str) -> Frames:
    with socket_of(server, experiment_id) as socket:
        subscribe(socket, after=cursor)
        return frames_until(socket, lambda frame: frame["type"] == "end")[1:]


def over_events(server: LiveServer, experiment_id: str, cursor: str) -> Frames:
    path = f"{server.url}/api/v1/experiments/{experiment_id}/stream"
    with httpx.stream("GET", path, headers={"Last-Event-ID": cursor}, timeout=60) as response:
        return list(_data(response.iter_lines()))


def _data(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:"))


def first_round(server: LiveServer) -> tuple[str, SimulatedWorker, Frames]:
    """What a reader saw of the first attempt before it went away."""
    experiment_id, worker = running(server.ctx, budget={"rounds": ROUNDS})
    with socket_of(server, experiment_id) as socket:
        subscribe(socket)
        frames_until(socket, lambda frame: frame["type"] == "snapshot")
        worker.hand_in(0)
        seen = frames_until(socket, lambda frame: frame["type"] == "delta" and bool(frame["points"]))
    return experiment_id, worker, seen


def take_up(worker: SimulatedWorker, last: int, checkpoint: int) -> None:
    """Hand in rounds to the last, lose the worker and begin a new attempt at the checkpoint."""
    for index in range(worker.held.resume_round, last + 1):
        if index > 0:
            worker.hand_in(index)
        if index + 1 == checkpoint:
            worker.checkpoint(checkpoint)
    worker.release("error", "worker_lost", "killed")
    wait_until(worker.claim, what="an assignment")
    worker.ready()


def finish(worker: SimulatedWorker) -> None:
    for index in range(worker.held.resume_round, ROUNDS):
        worker.hand_in(index)
    worker.checkpoint(ROUNDS)
    worker.release()


def shown(frames: Frames) -> dict[tuple[str, str, int], float | None]:
    """What a page shows that adds the points of each frame and cuts where it is told to."""
    curve: dict[tuple[str, str, int], float | None] = {}
    for frame in frames:
        for item in frame.get("points", []):
            for index, value in zip(item["round"], item["value"], strict=True):
                curve[item["run_id"], item["metric"], index] = value
        if frame["type"] == "truncate":
            curve = {key: y for key, y in curve.items() if key[0] != frame["run"] or key[2] < frame["from_round"]}
    return curve


def stored(server: LiveServer, experiment_id: str) -> dict[tuple[str, str, int], float | None]:
    names = ["eval/accuracy", "train/return_mean"]
    document = httpx.get(
        f"{server.url}/api/v1/experiments/{experiment_id}/series", params={"metrics": names, "x": "round"}
    ).json()
    return {
        (series["run_id"], series["metric"], index): value
        for series in document["series"]
        for index, value in zip(series["x"], series["mean"], strict=True)
    }


@pytest.mark.parametrize("at_once", [live.CATCH_UP_ROWS, 3], ids=["whole", "in_pieces"])
@pytest.mark.parametrize("way", [over_socket, over_events])
def test_reader_away_while_attempts_changed_gets_each_of_them_in_order(
    server: LiveServer,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[LiveServer, str, str], Frames],
    at_once: int,
) -> None:
    experiment_id, worker, seen = first_round(server)
    take_up(worker, last=2, checkpoint=2)
    take_up(worker, last=2, checkpoint=3)
    finish(worker)
    monkeypatch.setattr(live, "CATCH_UP_ROWS", at_once)
    later = way(server, experiment_id, seen[-1]["cursor"])
    assert len(points(seen) + points(later)) == 2 * 2 * (3 + 1 + 1)  # rounds 0-2, 2 again, 3
    assert shown(seen + later) == stored(server, experiment_id)
    assert len(shown(seen + later)) == 2 * 2 * ROUNDS


def test_stream_cut_after_any_frame_goes_on_with_the_next(server: LiveServer) -> None:
    experiment_id, worker, seen = first_round(server)
    take_up(worker, last=2, checkpoint=2)
    finish(worker)
    over_socket(server, experiment_id, seen[-1]["cursor"])  # until the end, which the past tells in another form
    whole = over_socket(server, experiment_id, seen[-1]["cursor"])
    for index, frame in enumerate(whole):
        if frame["type"] not in ("delta", "truncate"):
            continue
        pieced = whole[: index + 1] + over_socket(server, experiment_id, frame["cursor"])
        assert shown(seen + pieced) == stored(server, experiment_id)
        assert sorted(points(pieced), key=str) == sorted(points(whole), key=str)
        assert happened(pieced) == happened(whole)


def happened(frames: Frames) -> list[Any]:
    """Return what was told beside points, in order."""
    told = [[*frame.get("rounds", ()), *([frame["event"]] if "event" in frame else [])] for frame in frames]
    return [item for items in told for item in items]


@pytest.mark.parametrize("way", [over_socket, over_events])
def test_cursor_of_the_largest_experiment_is_taken_up(
    server: LiveServer, way: Callable[[LiveServer, str, str], Frames]
) -> None:
    experiment_id, worker = running(server.ctx, budget={"rounds": 1})
    worker.train(rounds=1)
    # 8 arms of 1,000 replicates, no two runs alike, with up to 200 metrics in each of 100,000 rounds
    draw = random.Random(5)
    position = live.Position(
        0, {10**6 + no: (draw.randint(1, 110), draw.randint(0, 20_000_000)) for no in range(8_000)}
    )
    cursor = position.cursor()
    assert live.Position.parse(cursor) == position
    seen = way(server, experiment_id, cursor)
    assert len(points(seen)) == 4
    assert live.Position.parse(seen[-1]["cursor"]).runs.items() > position.runs.items()
    path = f"/api/v1/experiments/{experiment_id}/events?after={cursor}"
    assert live.Position.parse(httpx.get(server.url + path).json()["next"]).runs == position.runs
    assert status_in_pieces(server, path) == 200


def test_cursor_beyond_every_row_is_read(server: LiveServer) -> None:
    experiment_id, worker = running(server.ctx, budget={"rounds": 1})
    worker.train(rounds=1)
    with server.ctx.store.read() as session:
        nos = [place.no for place in points_of.positions(session, [experiment_id])]
    position = live.Position(2**31 - 1, dict.fromkeys(nos, (2**15 - 1, 2**31 - 1)))
    batch = live.read_batch(server.ctx, experiment_id, live.Position.parse(position.cursor()))
    assert (batch.events, batch.points) == ([], [])


def status_in_pieces(server: LiveServer, path: str) -> int:
    """Return the status of a request whose head comes in two pieces, as over a slow line."""
    address = httpx.URL(server.url)
    head = f"GET {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        connection.sendall(head[:30_000])
        time.sleep(0.05)
        connection.sendall(head[30_000:])
        return int(connection.recv(100).split()[1])


#: Not of a length that a cursor has; numbers that no row has.
FOREIGN = [1, 2], [-1], [1, 2, -1, 3], [1, 2, 2**15, 3]


@pytest.mark.parametrize("bad", ["", "x", "\u00e9", "AAAA", encode_cursor(1, {}), *map(encode_numbers, FOREIGN)])
def test_cursor_of_another_kind_is_refused(bad: str) -> None:
    with pytest.raises(InvalidError, match="the cursor is not one that this server gave"):
        live.Position.parse(bad)
