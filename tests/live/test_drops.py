"""A socket that is cut 200 times, wherever it happens to be: what was read before and after is all there is, once."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections import Counter
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from lockstep.client import Client
from tests.conftest import LiveServer
from tests.live.test_protocol import frames_until, points, running, socket_of, subscribe

pytestmark = pytest.mark.server

DROPS = 200


def test_stream_cut_200_times_loses_and_doubles_nothing(sqlite_server: LiveServer) -> None:
    rounds = DROPS // 2
    experiment_id, worker = running(sqlite_server.ctx, budget={"rounds": rounds})
    rng = random.Random(7)
    frames: list[dict[str, Any]] = []
    cursor: str | None = None
    for drop in range(DROPS):
        with contextlib.suppress(OSError), socket_of(sqlite_server, experiment_id) as stream:
            subscribe(stream, after=cursor)
            if cursor is None:
                frames += frames_until(stream, lambda frame: frame["type"] == "snapshot")
            elif drop % 2:
                worker.hand_in(drop // 2)
            wanted = rng.randrange(4)
            frames += [frame for frame in _read(stream, wanted) if frame["type"] not in ("ping", "hello")]
            cursor = next((frame["cursor"] for frame in reversed(frames) if "cursor" in frame), cursor)
            # no goodbye, as where a cable is pulled; what was under way is lost
            stream.socket.shutdown(socket.SHUT_RDWR)
    worker.checkpoint(rounds)
    with socket_of(sqlite_server, experiment_id) as stream:
        subscribe(stream, after=cursor)
        frames += frames_until(stream, lambda frame: frame["type"] == "end")
    seen = Counter(points(frames))
    assert set(seen.values()) == {1}
    assert len(seen) == rounds * 2 * 2
    told = Counter((item["block_id"], item["round"]) for frame in frames for item in frame.get("rounds", []))
    assert set(told.values()) == {1}
    assert len(told) == rounds
    events = Counter(frame["event"]["seq"] for frame in frames if frame["type"] in ("status", "event"))
    assert set(events.values()) == {1}
    with Client(sqlite_server.url) as client:
        stored = client.call("GET", f"experiments/{experiment_id}/events", params={"limit": 2000})["items"]
    apart = ("round_completed", "experiment_end")
    began = min(events)
    assert set(events) == {event["seq"] for event in stored if event["type"] not in apart and event["seq"] >= began}


def _read(stream: ClientConnection, count: int) -> list[dict[str, Any]]:
    """Return so many frames; fewer where none comes."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(TimeoutError):
        while len(found) < count:
            found.append(json.loads(stream.recv(timeout=0.02)))
    return found
