"""The states that a page may show, made on a live server by simulated workers: waiting, live, ended in every way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from app.services import steering
from app.services.experiments import submission
from app.services.results.finishing import finish_due
from app.services.training import assignments, ingest
from app.services.training.workers import heartbeat
from lockstep import protocol as p
from lockstep.status import Desired
from tests.conftest import LiveServer, wait_until
from tests.factories import LOCAL, SimulatedWorker, submit, tiny_spec

LONG = "a comparison whose name goes on and on until nothing that is meant for two words can hold it any more"
UNBROKEN = "one_word_" * 7
ARABIC = "مقارنة المكافآت"
HEBREW = "השוואת תגמולים"


def apart(arm: str, replicate: int) -> float:
    """Return the accuracy of an arm: B is ahead by far, of many arms each by a point."""
    place = ord(arm[0].upper()) - ord("A") if arm[:1].isascii() else 1
    return 50.0 + replicate / 7 + (10.0 + replicate / 9 if place == 1 else place)


def worker_of(server: LiveServer, name: str = "w0") -> SimulatedWorker:
    """Return a registered worker whose arms differ by far."""
    worker = SimulatedWorker(server.ctx, name)
    worker.accuracy = apart
    return worker.register()


def claim(worker: SimulatedWorker) -> p.Assignment:
    """Claim the next replicate, however busy the server's own tick is."""
    wait_until(lambda: worker.beat("idle") and worker.claim(), what="an assignment")
    assert worker.ready()
    return worker.held


def finished(server: LiveServer, *, trained: int | None = None, **changes: Any) -> str:
    """Return the id of an experiment whose simulated arms differ by far, and which is reported if all are trained."""
    spec: dict[str, Any] = {"experiment": {"name": "far apart", "replicates": 6}, "budget": {"rounds": 2}}
    analysis = {"inference": "full", "sesoi": 2.0}
    experiment_id = submit(server.ctx, tiny_spec(**{**spec, "analysis": analysis, **changes}))
    worker = worker_of(server)
    with server.ctx.store.read() as session:
        row = steering.existing(session, experiment_id)
    replicates, rounds = row.spec["experiment"]["replicates"], row.rounds
    for _ in range(replicates if trained is None else trained):
        claim(worker)
        worker.train(rounds=rounds)
    worker.beat("leaving")
    finish_due(server.ctx)
    return experiment_id


def retried(server: LiveServer) -> str:
    """Return the id of an experiment whose replicates failed, and were trained again with different codes."""
    experiment_id = submit(server.ctx, tiny_spec(experiment={"name": "again", "replicates": 2}, budget={"rounds": 1}))
    worker = worker_of(server)
    for _ in range(2):
        claim(worker)
        worker.release("error", "environment", "reward mode 'simplified' raised KeyError: 'speed'")
    submission.retry(server.ctx, experiment_id, LOCAL)
    for replicate in range(2):
        wait_until(lambda: worker.beat("idle") and worker.claim(), what="an assignment")
        assert worker.ready(record={"plugins": {"mine": "mine 1.0 (aaaa)" if replicate else "mine 1.0 (bbbb)"}})
        worker.hand_in(0)
        worker.checkpoint(1)
        worker.release()
    worker.beat("leaving")
    finish_due(server.ctx)
    return experiment_id


def waiting(server: LiveServer, **changes: Any) -> str:
    """Return the id of an experiment that no worker has begun."""
    spec = {"experiment": {"name": "waits", "replicates": 4}}
    return submit(server.ctx, tiny_spec(**{**spec, **changes}))


def live(server: LiveServer, **changes: Any) -> str:
    """Return the id of an experiment of which one replicate has ended, one trains and the rest wait."""
    spec = {"experiment": {"name": "in the middle", "replicates": 6}, "budget": {"rounds": 8}}
    experiment_id = submit(
        server.ctx, tiny_spec(**{**spec, "analysis": {"inference": "full", "sesoi": 2.0}, **changes})
    )
    worker = worker_of(server)
    for rounds in (8, 3):
        claim(worker)
        for index in range(rounds):
            hand_in(worker, index)
        if rounds == 8:
            worker.checkpoint(8)
            worker.release()
    return experiment_id


def hand_in(worker: SimulatedWorker, index: int) -> None:
    """Hand in a round in which accuracy rises and grafts grow in both environments of every run."""
    rise = 1.0 - 0.6 * 0.75**index
    worker.accuracy = lambda arm, replicate: apart(arm, replicate) * rise + 3 * _noise(arm, replicate, index)
    held = worker.held
    runs = [worker._round(run, index, "", ()) for run in held.runs]
    grown = [run.model_copy(update={"events": _lives(index + place)}) for place, run in enumerate(runs)]
    request = p.RoundRequest(runs=grown, update_order=list(range(len(grown))), seconds=0.1)
    assignments.put_round(worker.ctx, held.assignment_id, held.lease, index, request)


def _noise(*parts: object) -> float:
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:6], 16) / 2**24 - 0.5


def _lives(turn: int) -> list[dict[str, Any]]:
    """Return one graft that is kept, one that is pruned and one that blends at the end."""

    def event(kind: str, env: int, step: int, slot: str, blueprint: str, alpha: float, **told: Any) -> dict[str, Any]:
        shown = {"slot": slot, "blueprint": blueprint, "params": 614, "alpha": alpha, "cf": None, **told}
        return {"type": kind, "env_id": env, "step": step, "text": f"{blueprint} in {slot}", **shown}

    moved = "graft_stage_changed"
    late = turn % 2
    return [
        event("graft_germinated", 0, 0, "r0c0", "bottleneck", 0.0, c=None),
        event(moved, 0, 1, "r0c0", "bottleneck", 0.0, c=None, to="TRAINING"),
        event(moved, 0, 3, "r0c0", "bottleneck", 0.0, c=None, to="BLENDING"),
        event(moved, 0, 5 + late, "r0c0", "bottleneck", 0.7, c=1.84, to="HOLDING"),
        event("graft_fossilized", 0, 7, "r0c0", "bottleneck", 0.7, c=2.31),
        event("graft_germinated", 0, 2, "r0c1", "norm", 0.0, c=None),
        event("graft_pruned", 0, 4, "r0c1", "norm", 0.0, c=-0.4, reason="policy"),
        event("graft_germinated", 1, 1 + late, "r0c1", "depthwise", 0.0, c=None),
        event(moved, 1, 3 + late, "r0c1", "depthwise", 0.0, c=None, to="TRAINING"),
        event(moved, 1, 4 + late, "r0c1", "depthwise", 0.0, c=None, to="BLENDING"),
    ]


def failed(server: LiveServer, **changes: Any) -> str:
    """Return the id of an experiment whose only replicate failed in the user's code, with its traceback in the log."""
    experiment_id = submit(server.ctx, tiny_spec(**{"experiment": {"name": "blew up"}, **changes}))
    worker = worker_of(server)
    held = claim(worker)
    hand_in(worker, 0)
    lines = [
        "Traceback (most recent call last):",
        '  File "mypkg/shape.py", line 22',
        "RuntimeError: my reward blew up",
    ]
    request = p.LogsRequest(lines=[p.LogLine(seq=seq + 1, level="error", text=line) for seq, line in enumerate(lines)])
    ingest.post_logs(server.ctx, held.assignment_id, held.lease, request)
    worker.release("error", "config", "RuntimeError: my reward blew up (mypkg/shape.py:22)")
    worker.beat("leaving")
    return experiment_id


def cancelled(server: LiveServer, **changes: Any) -> str:
    """Return the id of an experiment that was cancelled before anything ended."""
    experiment_id = waiting(server, **{"experiment": {"name": "given up", "replicates": 4}, **changes})
    steering.set_desired(server.ctx, experiment_id, Desired.CANCEL, "no longer asked", LOCAL)
    return experiment_id


def many(server: LiveServer) -> str:
    """Return the id of a finished experiment of 8 arms and 10 replicates."""
    arms = [
        {"label": f"{letter}-lr-{3**place}e-5", "reward": "shaped", "overrides": {"ppo.lr": float(f"{3**place}e-5")}}
        for place, letter in enumerate("ABCDEFGH")
    ]
    return finished(server, experiment={"name": "eight learning rates", "replicates": 10}, arms=arms)


def named(server: LiveServer) -> str:
    """Return the id of an experiment with long names and names written from right to left."""
    arms = [
        {"label": "a_label_that_has_no_place_to_be_", "reward": "shaped"},
        {"label": "B_as_long_as_any_label_may_ever_", "reward": "simplified"},
    ]
    return finished(
        server,
        experiment={"name": f"{UNBROKEN}{UNBROKEN} {ARABIC} {HEBREW}", "replicates": 6, "tags": [ARABIC, UNBROKEN]},
        arms=arms,
    )


def fleet(server: LiveServer) -> dict[str, SimulatedWorker]:
    """Return workers with a GPU each: one idle, one that trains after a failure, one whose memory is not free again."""
    workers = {}
    for name in ("idle", "trains", "ill"):
        worker = SimulatedWorker(
            server.ctx, name, kind="gpu", device_class="gpu", uid=f"GPU-{name}", versions={"torch": "2.13.0"}
        )
        workers[name] = worker.register()
    for name in ("idle", "trains"):
        beat(workers[name], "idle", p.Health(memory_used_bytes=3 * 2**30, utilisation=12.0, temperature_c=41.0))
    beat(workers["ill"], "idle", p.Health(ok=False, detail="900 MiB in use after the block, 3 MiB before any"))
    return workers


def beat(worker: SimulatedWorker, state: Any, health: p.Health) -> None:
    """Send the heartbeat of a worker that holds nothing."""
    request = p.HeartbeatRequest(incarnation=worker.incarnation, state=state, health=health)
    heartbeat(worker.ctx, worker.worker_id, request)


#: In the order in which they may stand on one server: what waits comes when no worker is left to take it.
STATES: dict[str, Callable[..., str]] = {
    "finished": finished,
    "failed": failed,
    "many": many,
    "named": named,
    "live": live,
    "cancelled": cancelled,
    "waiting": waiting,
}
