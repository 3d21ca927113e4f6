"""Where the time of each block of an experiment goes, made from its live frames and its workers' events.

All instants are the server's. A block is taken from the claim of its last attempt, so rounds of an attempt that
was given up are in no part.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from lockstep.client import Client
from lockstep.status import TERMINAL_BLOCK, BlockStatus, WorkerStatus

METRICS = ("sys/round_seconds", "sys/rollout_seconds")
#: Parts of a block in their order.
PARTS: Mapping[str, str] = {
    "start": "from claim to ready, without the warm-up: child, imports, data",
    "warm_up": "warm-up of the child",
    "rollout": "acting and environments, all rounds",
    "update": "updates, all rounds",
    "evaluation": "the last round beyond its rollout and the median update",
    "between": "from ready to the last receipt, beyond the rounds: metrics, frames, storing, barrier",
    "finish": "from the last receipt to the end: checkpoint, policies, their upload",
    "release": "from the end until the worker is idle: the child ends, the device is checked",
    "next": "from then to the worker's next claim",
}


@dataclass
class Block:
    """Instants of the last attempt of a block, in seconds since 1970.

    Attributes:
        replicate: of the experiment.
        seconds: of each round by metric, as the trainer measured them.
    """

    replicate: int
    status: str = BlockStatus.QUEUED.value
    attempts: int = 0
    worker: str | None = None
    claimed: float | None = None
    ready: float | None = None
    warm_up: float | None = None
    received: float | None = None
    ended: float | None = None
    idle: float | None = None
    seconds: dict[str, dict[int, float]] = field(default_factory=lambda: {name: {} for name in METRICS})

    @property
    def is_leaving(self) -> bool:
        """Whether it has ended and its worker has not been seen idle since."""
        return self.worker is not None and self.ended is not None and self.idle is None

    def parts(self, next_claim: float | None) -> dict[str, float | None]:
        """Return the seconds of each part, None where it is not known."""
        rounds, rollouts = (self.seconds[name] for name in METRICS)
        rest = {index: rounds[index] - rollouts[index] for index in sorted(rounds.keys() & rollouts.keys())}
        evaluation = _evaluation(list(rest.values())) if self.ended is not None else None
        values = {
            "start": _minus(_minus(self.ready, self.claimed), self.warm_up),
            "warm_up": self.warm_up,
            "rollout": sum(rollouts.values()) if rollouts else None,
            "update": _minus(sum(rest.values()), evaluation),
            "evaluation": evaluation,
            "between": _minus(_minus(self.received, self.ready), sum(rounds.values())),
            "finish": _minus(self.ended, self.received),
            "release": _minus(self.idle, self.ended),
            "next": _minus(next_claim, self.idle),
        }
        return {name: values[name] for name in PARTS}


def _evaluation(rest: list[float]) -> float | None:
    """Return by how much the last round exceeds the median of the others."""
    return rest[-1] - median(rest[:-1]) if len(rest) > 1 else None


def _minus(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


class Timeline:
    """The blocks of one experiment, as far as the frames have told.

    Args:
        submitted_at: instant of the submission, as the API shows it.
    """

    def __init__(self, submitted_at: str) -> None:
        self.submitted = _instant(submitted_at)
        self.blocks: dict[str, Block] = {}
        self._block_of_run: dict[str, str] = {}
        self._seen = 0

    def begin(self, snapshot: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
        """Take the blocks and runs from the first frame, and what happened before it from the events."""
        self.blocks = {item["id"]: Block(item["replicate"]) for item in snapshot["blocks"]}
        self._block_of_run = {item["id"]: item["block_id"] for item in snapshot["runs"]}
        for event in events:
            self._add_event(event)

    def add(self, frame: Mapping[str, Any]) -> Block | None:
        """Take note of a frame and return the block that has ended with it."""
        if frame["type"] == "delta":
            for series in frame["points"]:
                self._add_points(series)
        return self._add_event(frame["event"]) if frame["type"] in ("status", "event") else None

    def _add_points(self, series: Mapping[str, Any]) -> None:
        block = self.blocks[self._block_of_run[series["run_id"]]]
        block.seconds[series["metric"]] |= dict(zip(series["round"], series["value"], strict=True))
        block.received = max([*series["t"], block.received or 0.0])

    def _add_event(self, event: Mapping[str, Any]) -> Block | None:
        if event["seq"] <= self._seen:
            return None
        self._seen = event["seq"]
        if event["type"] == "warmup_completed":
            block = self.blocks[event["block_id"]]
            block.ready, block.worker = _instant(event["time"]), event["worker_id"]
            block.warm_up = float(event["payload"]["seconds"])
        return self._add_status(event) if event["type"] == "block_status" else None

    def _add_status(self, event: Mapping[str, Any]) -> Block | None:
        key, status = event["block_id"], BlockStatus(event["status"])
        if status is BlockStatus.RESERVED:
            old = self.blocks[key]
            self.blocks[key] = Block(old.replicate, attempts=old.attempts + 1, claimed=_instant(event["time"]))
        block = self.blocks[key]
        block.status = status.value
        if status not in TERMINAL_BLOCK:
            return None
        block.ended = _instant(event["time"])
        return block

    def read_workers(self, client: Client) -> None:
        """Take from the events of the workers when each was idle again after its blocks."""
        for worker in client.call("GET", "workers")["items"]:
            events = client.call("GET", f"workers/{worker['id']}")["events"]
            idle = [_instant(event["at"]) for event in events if event["status"] == WorkerStatus.IDLE]
            for block in self.blocks.values():
                if block.worker == worker["id"] and block.ended is not None and block.is_leaving:
                    block.idle = min((at for at in idle if at >= block.ended), default=None)

    def settle(self, client: Client, seconds: float = 10.0) -> None:
        """Wait until the workers are idle again, which is after the end of the experiment."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(block.is_leaving for block in self.blocks.values()):
            time.sleep(0.1)
            self.read_workers(client)

    def summary(self) -> dict[str, Any]:
        """Return the rows of all blocks that were claimed and the medians over those that succeeded."""
        rows = [self.row(block) for block in self.blocks.values() if block.claimed is not None]
        rows.sort(key=lambda row: float(row["claimed_after"]))
        parts = [row["seconds"] for row in rows if row["status"] == BlockStatus.SUCCEEDED]
        known = {name: [part[name] for part in parts if part[name] is not None] for name in PARTS}
        return {"blocks": rows, "medians": {name: median(values) for name, values in known.items() if values}}

    def row(self, block: Block) -> dict[str, Any]:
        """Return what is known of a block; ``_after`` counts seconds from the submission."""
        return {
            "replicate": block.replicate,
            "status": block.status,
            "attempts": block.attempts,
            "claimed_after": _minus(block.claimed, self.submitted),
            "ended_after": _minus(block.ended, self.submitted),
            "round_seconds": [seconds for _, seconds in sorted(block.seconds[METRICS[0]].items())],
            "seconds": block.parts(self._next_claim(block)),
        }

    def _next_claim(self, block: Block) -> float | None:
        claims = [other.claimed for other in self.blocks.values() if other.worker == block.worker]
        later = [at for at in claims if at is not None and block.idle is not None and at >= block.idle]
        return min(later, default=None)

    def line(self, block: Block) -> str:
        """Return a line of a block that has ended."""
        row = self.row(block)
        parts = ", ".join(f"{name} {value:.2f}" for name, value in row["seconds"].items() if value is not None)
        at = row["ended_after"] or 0.0
        return f"{at:8.1f} s  replicate {block.replicate} {block.status}: {parts or 'no part is known'}"

    def table(self) -> str:
        """Return the medians as lines."""
        found = self.summary()
        lines = [f"seconds of a block, medians ({len(found['blocks'])} blocks were claimed)"]
        lines += [f"  {name:10s} {value:8.2f}  {PARTS[name]}" for name, value in found["medians"].items()]
        if found["blocks"]:
            lines.append(f"the first block was claimed {found['blocks'][0]['claimed_after']:.1f} s after submission")
        return "\n".join(lines)


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
