"""Starts training processes, and keeps at most one in reserve: its imports done, no assignment yet.

A process imports for seconds before it can train; a spare does so while the block before it trains. It holds no
lease and has not touched the device. Linux kills a child when the *thread* that started it ends, so everything
here is called by the thread that lives as long as the supervisor: the main thread.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from worker.supervisor import Child

#: Set in the environment of a process that was started as a spare.
IS_SPARE = "LOCKSTEP_IS_SPARE"
#: Names (15 bytes at most) that the kernel and `ps -o comm` show for a process before and after its assignment.
WAITING_NAME, TRAINING_NAME = "lockstep-spare", "lockstep-train"


class Starter:
    """Starts the training processes of one device.

    Args:
        command: trainer.
        environment: what the device needs in its environment.
        keeps_spare: whether a spare may be started; a trainer that touches the device before it has an
            assignment must not have one.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], *, keeps_spare: bool) -> None:
        self._command, self._environment = command, dict(environment)
        self._keeps_spare = keeps_spare
        self._spare: Child | None = None
        #: Experiments of which a block was ready here: what their kernels compile to is on this machine's disk.
        self.rehearsed: set[str] = set()

    def start(self) -> Child:
        """Start a process that is given its assignment at once."""
        return Child(self._command, self._environment)

    def ready(self, experiment_id: str, *, spare: bool) -> None:
        """Note that a block of an experiment is ready; a spare is started now, not to slow down that block's start."""
        self.rehearsed.add(experiment_id)
        if spare:
            self.keep()

    def keep(self) -> None:
        """Start a spare unless one lives; the running share goes on where the host has no room for one."""
        self._forget_the_dead()
        if self._spare is not None or not self._keeps_spare:
            return
        try:
            self._spare = Child(self._command, {**self._environment, IS_SPARE: "1"})
        except OSError as error:
            sys.stderr.write(f"no spare training process could be started: {error}\n")

    def take(self) -> Child | None:
        """Hand out the spare, if one lives; it may still be importing."""
        self._forget_the_dead()
        spare, self._spare = self._spare, None
        return spare

    def end(self) -> None:
        """Kill the spare; it has nothing to save."""
        spare = self.take()
        if spare is not None:
            spare.close()

    def _forget_the_dead(self) -> None:
        if self._spare is not None and not self._spare.is_alive():
            self._spare.forget()
            self._spare = None


def is_idle_spare(pid: int) -> bool:
    """Return whether a process was started as a spare and has no assignment yet (Linux); False when it is gone."""
    process = Path("/proc") / str(pid)
    try:
        marked = f"{IS_SPARE}=1".encode() in (process / "environ").read_bytes().split(b"\0")
        return marked and (process / "comm").read_text().strip() != TRAINING_NAME
    except OSError:
        return False
