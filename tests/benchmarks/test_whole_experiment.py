"""The benchmark of a whole experiment says where the time of its blocks goes, also when it does not succeed."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.served import Service, service
from benchmarks.timeline import METRICS, PARTS, Timeline
from benchmarks.whole_experiment import conduct, options_of


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def event(kind: str, seconds: float, **values: Any) -> dict[str, Any]:
    return {"type": kind, "block_id": "b", "time": at(seconds), "seq": round(10 * seconds), **values}


def status(seconds: float, state: str) -> dict[str, Any]:
    return {"type": "status", "event": event("block_status", seconds, status=state)}


def points(metric: str, index: int, seconds: float, received: float) -> dict[str, Any]:
    series = {"run_id": "r", "metric": metric, "round": [index], "value": [seconds], "t": [received]}
    return {"type": "delta", "points": [series], "rounds": []}


SNAPSHOT = {
    "type": "snapshot",
    "blocks": [{"id": "b", "replicate": 3}],
    "runs": [{"id": "r", "block_id": "b"}],
}


def ready(seconds: float, warm_up: float) -> dict[str, Any]:
    payload = {"seconds": warm_up}
    return {"type": "event", "event": event("warmup_completed", seconds, worker_id="w", payload=payload)}


def told(*frames: dict[str, Any]) -> Timeline:
    timeline = Timeline(at(100.0))
    timeline.begin(SNAPSHOT, [])
    for frame in frames:
        timeline.add(frame)
    return timeline


def three_rounds() -> Iterator[dict[str, Any]]:
    """Rounds of 3, 3 and 5 s, acting 2 s each, received 1 s late."""
    for index, (seconds, received) in enumerate([(3.0, 121.0), (3.0, 124.0), (5.0, 129.0)]):
        yield points(METRICS[0], index, seconds, received)
        yield points(METRICS[1], index, 2.0, received)


def test_timeline_of_a_block_splits_it_into_parts_that_add_up() -> None:
    timeline = told(status(110.0, "reserved"), ready(117.0, 1.5), *three_rounds(), status(130.5, "succeeded"))
    (row,) = timeline.summary()["blocks"]
    assert (row["replicate"], row["status"], row["claimed_after"], row["ended_after"]) == (3, "succeeded", 10.0, 30.5)
    known = {name: value for name, value in row["seconds"].items() if value is not None}
    assert known == pytest.approx(
        {"start": 5.5, "warm_up": 1.5, "rollout": 6.0, "update": 3.0, "evaluation": 2.0, "between": 1.0, "finish": 1.5}
    )
    assert sum(known.values()) == pytest.approx(row["ended_after"] - row["claimed_after"])
    assert timeline.summary()["medians"] == known


def test_timeline_takes_what_happened_before_the_stream_began_once() -> None:
    timeline, claim = Timeline(at(100.0)), status(110.0, "reserved")
    timeline.begin(SNAPSHOT, [claim["event"]])
    timeline.add(claim)
    (row,) = timeline.summary()["blocks"]
    assert (row["attempts"], row["claimed_after"]) == (1, 10.0)


def test_timeline_of_a_second_attempt_forgets_the_first() -> None:
    timeline = told(status(101.0, "reserved"), ready(105.0, 1.0), *three_rounds(), status(130.0, "queued"))
    timeline.add(status(131.0, "reserved"))
    (row,) = timeline.summary()["blocks"]
    assert (row["attempts"], row["claimed_after"], row["round_seconds"]) == (2, 31.0, [])
    assert set(row["seconds"].values()) == {None}
    assert timeline.summary()["medians"] == {}


def test_limit_ends_a_benchmark_with_one() -> None:
    code = "import time; from benchmarks.served import end_after; end_after(0.05); time.sleep(60)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr.strip()) == (1, "the limit of 0.05 s is over")


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with service(port) as found:
        found.start_workers(["cpu"])
        yield found


@pytest.mark.server
def test_whole_experiment_knows_every_part_of_a_block(running: Service, capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[dict[str, Any]] = []
    found = conduct(running, options_of(["--match", "tiny", "--replicates", "1", "--rounds", "2"]), kept.append)
    assert (found["runs"], found["runs_succeeded"]) == (2, 2)
    assert set(found["medians"]) == set(PARTS) - {"next"}
    assert all(seconds >= 0.0 for seconds in found["medians"].values())
    assert kept[0]["blocks"][0]["status"] == "succeeded"
    assert "replicate 0 succeeded" in capsys.readouterr().out


@pytest.mark.server
def test_whole_experiment_that_fails_says_why(running: Service, capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(["--match", "tiny", "--replicates", "1", "--rounds", "2", "--path", "fused"])
    kept: list[dict[str, Any]] = []
    with pytest.raises(SystemExit, match="failed"):
        conduct(running, options, kept.append)
    printed = capsys.readouterr().out
    assert "needs a CUDA device" in printed
    assert "-- worker-0.log" in printed
    assert kept[-1]["blocks"][0]["status"] == "failed"
