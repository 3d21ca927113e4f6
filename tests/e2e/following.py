"""Following an experiment on its WebSocket, as a script would."""

from __future__ import annotations

import json
import time
from typing import Any

from websockets.sync.client import connect


def follow(
    url: str, experiment_id: str, *, metrics: list[str] | None = None, timeout: float = 400.0
) -> list[dict[str, Any]]:
    """Return every frame from the snapshot to ``end``."""
    frames: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout
    address = url.replace("http", "ws") + f"/api/v1/experiments/{experiment_id}/ws"
    with connect(address, max_size=None, open_timeout=60) as socket:
        socket.send(json.dumps({"type": "subscribe", "metrics": metrics or [], "after": None}))
        while not frames or frames[-1]["type"] != "end":
            frame = json.loads(socket.recv(timeout=max(1.0, deadline - time.monotonic())))
            if frame["type"] == "ping":
                socket.send('{"type":"pong"}')
                continue
            frames.append(frame)
    return frames
