"""How long the page waits for its snapshot of a long experiment, on SQLite and PostgreSQL; run by hand.

    python -m benchmarks.snapshot --database sqlite|postgresql [--replicates 80] [--rounds 200] [--metrics 5]

Fills a database with an experiment of two arms (a comparison of each round and some metrics of each run), reads its
snapshot with one metric as the page does, prints median and worst with and without the curves, and exits 1 on a miss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from sqlalchemy import insert, select, update

from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.services.experiments import live
from app.services.experiments.live import Interest
from app.settings import Settings
from app.store.database.engine import Store, utc
from app.store.records.events import NewEvent, add_events
from app.store.records.points import MetricNames
from app.store.schema import tables as t
from benchmarks.control_plane import fresh
from tests.factories import submit, tiny_spec

TARGET_SECONDS = 0.1


def names_of(metrics: int) -> list[str]:
    """Return so many names; the first is the one that the page draws by itself."""
    return ["eval/accuracy", *(f"train/metric_{number}" for number in range(1, metrics))]


def fill(ctx: Context, replicates: int, rounds: int, metrics: int) -> str:
    """Make an experiment of which every round is complete; return its id."""
    spec = tiny_spec(experiment={"replicates": replicates}, budget={"rounds": rounds})
    experiment_id = submit(ctx, spec)
    with ctx.store.write() as session:
        names = ctx.names.ids(session, names_of(metrics))
        now = ctx.store.now(session)
        blocks = session.execute(select(t.block).where(t.block.c.experiment_id == experiment_id)).all()
        for index in range(rounds):
            add_events(session, now, experiment_id, [_round_event(block, index) for block in blocks])
        session.execute(update(t.block).values(open_round=rounds, status="running", attempt=1))
    runs = _runs(ctx, experiment_id)
    for no in runs:
        with ctx.store.write() as session:
            last = rounds * metrics
            attempt = {"run_no": no, "attempt": 1, "from_round": 0, "last_seq": last, "started_at": utc(now)}
            session.execute(insert(t.run_attempt), [attempt])
            session.execute(insert(t.point), [_point(no, seq, names) for seq in range(last)])
    return experiment_id


def _runs(ctx: Context, experiment_id: str) -> list[int]:
    with ctx.store.read() as session:
        return [row.no for row in session.execute(select(t.run.c.no).where(t.run.c.experiment_id == experiment_id))]


def _round_event(block: Any, index: int) -> NewEvent:
    arms = [{"arm": arm, "reward_mode": "shaped", "accuracy": 50.0 + arm, "reward": 0.1 * index} for arm in range(2)]
    comparison = {"attempt": 1, "round": index, "arms": arms, "note": "x" * 300}
    text = f"round {index} of replicate {block.replicate}"
    return NewEvent("round_completed", text, block_id=block.id, round=index, payload=comparison)


def _point(run_no: int, seq: int, names: list[int]) -> dict[str, Any]:
    number = seq // len(names)
    place = {"run_no": run_no, "attempt": 1, "seq": seq + 1, "name_id": names[seq % len(names)]}
    return {**place, "step": number * 10.0, "round": number, "t": float(number), "value": seq * 0.5, "kind": 0}


def measure(ctx: Context, experiment_id: str, interest: Interest, count: int) -> list[float]:
    """Return the seconds of some snapshots, serialised as they are sent."""
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        json.dumps(live.snapshot(ctx, experiment_id, interest)[0])
        spent.append(time.perf_counter() - began)
    return spent


def main() -> int:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description="The page's snapshot of a long experiment.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--replicates", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=5)
    parser.add_argument("--times", type=int, default=9)
    options = parser.parse_args()
    with fresh(options.database) as (url, directory):
        settings = Settings(database_url=url, data_dir=directory)
        ctx = Context(Store(url), settings, FileStore(directory / "files"), MetricNames(), Bell())
        experiment_id = fill(ctx, options.replicates, options.rounds, options.metrics)
        misses = 0
        for name, interest in (("without curves", Interest()), ("with one metric", Interest(frozenset(names_of(1))))):
            spent = measure(ctx, experiment_id, interest, options.times)
            median = statistics.median(spent)
            misses += median > TARGET_SECONDS
            size = f"{2 * options.replicates} runs x {options.rounds} rounds x {options.metrics} metrics"
            print(
                f"{size}, {options.database}, {name}: median {median * 1e3:.1f} ms, worst {max(spent) * 1e3:.1f} ms",
                flush=True,
            )
        ctx.store.close()
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
