"""The spool: order, bound, logs dropped first, a file that stays small, a close that wakes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker.supervision.logs import LogReader
from worker.supervision.spool import Spool


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], Spool]]:
    made: list[Spool] = []

    def new(size: int) -> Spool:
        made.append(Spool(tmp_path / "s", size))
        return made[-1]

    yield new
    for spool in made:
        spool.close()


def test_records_come_back_in_order_and_leave_after_acknowledgement(
    make: Callable[[int], Spool], tmp_path: Path
) -> None:
    spool = make(10_000)
    for number in range(3):
        assert spool.append("points", {"n": number})
    assert spool.next(0.1) == {"kind": "points", "n": 0}
    assert spool.next(0.1) == {"kind": "points", "n": 0}
    spool.acknowledge()
    assert spool.next(0.1) == {"kind": "points", "n": 1}
    spool.acknowledge(2)
    assert spool.next(0.01) is None
    assert spool.waiting_bytes == 0


def test_full_spool_drops_logs_and_counts_them_while_points_wait(make: Callable[[int], Spool], tmp_path: Path) -> None:
    spool = make(200)
    while spool.append("log", {"text": "x" * 20}):
        pass
    assert spool.dropped_logs == 1
    done = threading.Event()

    def write() -> None:
        spool.append("points", {"value": "y" * 100})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.05)
    while not done.is_set():
        spool.acknowledge()
        done.wait(0.05)
    thread.join()
    kinds = []
    while (record := spool.next(0.01)) is not None:
        kinds.append(record["kind"])
        spool.acknowledge()
    assert kinds[-1] == "points"


def test_spool_that_is_never_empty_keeps_its_file_bounded(make: Callable[[int], Spool], tmp_path: Path) -> None:
    spool = make(1_000)
    spool.append("points", {"n": -1})
    for number in range(500):
        spool.append("points", {"n": number})
        record = spool.next(0.1)
        assert record == {"kind": "points", "n": number - 1}
        spool.acknowledge()
    assert (tmp_path / "s").stat().st_size < 3_000


def test_close_wakes_who_waits_and_later_calls_do_nothing(make: Callable[[int], Spool], tmp_path: Path) -> None:
    spool = make(40)
    spool.append("points", {"n": 1})
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(spool.append("points", {"n": "z" * 40})))
    thread.start()
    spool.close()
    thread.join(timeout=60)
    assert results == [False]
    spool.acknowledge()
    assert spool.next(0.01) is None


def test_the_account_of_an_error_is_whole_in_the_log_whatever_else_is_printed(make: Callable[[int], Spool]) -> None:
    spool = make(1_000_000)
    reader = LogReader(spool)
    for number in range(1000):
        reader.take(f"flood {number}")
    account = ["Traceback (most recent call last):", *(f"  frame {i}" for i in range(60)), "KeyError: 'speed'"]
    reader.tell("\n".join(account))
    records = spool.following("log", 2000)
    assert [(item["level"], item["text"]) for item in records[-62:]] == [("error", line) for line in account]
    assert spool.dropped_logs > 0
