"""Several assignments of one experiment in one training process: who gets which frame, who leaves, who is blamed.

Each keeps a runner of its own (`assignment.py`): lease, spool, stop, release. What the process says in common, its
output and its signs of life, all of them get. One that is given up is dropped by the process at its next round
border; the process itself is killed only when nobody is left in it, or when it hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lockstep import protocol as p
from lockstep.logs import get_logger
from worker.supervision.assignment import AssignmentRunner
from worker.supervision.control import Control
from worker.supervision.devices import Bound
from worker.supervision.logs import lines
from worker.supervision.options import Options
from worker.supervision.starter import CannotStart, Starter
from worker.supervision.supervisor import Child

_POLL_SECONDS = 0.05
#: How long after the last frame a block still takes lines of the log.
_LOG_SECONDS = 0.1
_log = get_logger("worker")


class PackRunner:
    """Trains the assignments that a worker was given together.

    Args:
        control: API calls.
        assignment: the first of them, with the others beside it.
        bound: device of this supervisor.
        directory: a folder for each lies under it.
        starter: starts the training process.
        options: the operator's choices.

    Attributes:
        runners: of each assignment.
    """

    def __init__(
        self,
        control: Control,
        assignment: p.Assignment,
        bound: Bound,
        directory: Path,
        starter: Starter,
        options: Options,
    ) -> None:
        self._starter = starter
        self._seats: list[Seat] = []
        self.runners: list[AssignmentRunner] = []
        for one in (assignment, *assignment.beside):
            seat = Seat(self, one)
            place = directory / one.assignment_id
            seat.runner = AssignmentRunner(control, one, bound, place, starter, options, seat.take)
            self._seats.append(seat)
            self.runners.append(seat.runner)
        self.lock = threading.RLock()
        self.started = threading.Event()
        self.error: CannotStart | None = None
        self.child: Child | None = None
        self.last_frame = time.monotonic()

    def run(self) -> None:
        """Train all of them to their ends; the thread that calls this one starts the process."""
        threads = [threading.Thread(target=seat.runner.run, name="assignment", daemon=True) for seat in self._seats]
        for thread in threads:
            thread.start()
        try:
            while any(
                thread.is_alive() and seat.command is None for thread, seat in zip(threads, self._seats, strict=True)
            ):
                time.sleep(_POLL_SECONDS)
            self._train([seat for seat in self._seats if seat.is_here])
        finally:
            self.started.set()
            for seat in self._seats:
                seat.close()
            for thread in threads:
                thread.join()
            if self.child is not None:
                self.child.close()

    def _train(self, seats: list[Seat]) -> None:
        if not seats:
            return
        first, *beside = [dict(seat.command or {}) for seat in seats]
        try:
            child = self._starter.start()
        except CannotStart as error:
            self.error = error
            return
        _log.info("started", pid=child.process.pid, replicates=[seat.replicate for seat in seats])
        self.last_frame = time.monotonic()
        child.send({"type": "assignment", **first, "beside": beside})
        with self.lock:
            self.child = child
            for seat in seats:
                if not seat.is_here:  # given up meanwhile
                    child.send({"type": "drop", "assignment": seat.name})
        self.started.set()
        threading.Thread(target=self._read, args=(child,), name="logs", daemon=True).start()
        for frame in child.frames():
            self._on_frame(seats, frame)
            if not any(seat.is_here for seat in seats):
                break  # it may hang at its exit, with the pipe open
        child.join()
        self._blame([seat for seat in seats if seat.is_here])

    def _read(self, child: Child) -> None:
        """Give each line of the output to all who are in the process."""
        for line in lines(child.output):
            for seat in self._seats:
                if seat.listens:
                    seat.runner.log(line)

    def _on_frame(self, seats: list[Seat], frame: dict[str, Any]) -> None:
        self.last_frame = time.monotonic()
        named = frame.pop("assignment", seats[0].name)
        for seat in seats:
            seat.runner.touch()
            if seat.name == named:
                seat.put(frame)

    def _blame(self, left: list[Seat]) -> None:
        """The process has ended while these were in it: who was in the user's code has done it, if anybody was."""
        inside = [seat for seat in left if seat.runner.inside()]
        text = self.child.exit_text() if self.child is not None else ""
        for seat in left:
            if inside and seat not in inside:
                where = f"replicate {inside[0].replicate} ({inside[0].runner.inside()})"
                seat.runner.evict(f"its process ended ({text}) in {where}")

    def leave(self, seat: Seat) -> None:
        """Let one be given up; kill the process if it was the last, or if the process hangs."""
        with self.lock:
            if not seat.is_here:
                return
            hangs = seat.asked is not None and self.last_frame < seat.asked
            others = [other for other in self._seats if other is not seat and other.is_here]
            seat.close()
            child = self.child
            if child is None:
                return
            if others and not hangs:
                child.send({"type": "drop", "assignment": seat.name})
                return
            for other in others:
                other.runner.evict(f"its process was killed: replicate {seat.replicate} did not stop in time")
                other.close()
        child.kill()  # halted as it is, if it is: others may train its blocks by now

    def is_elsewhere(self, seat: Seat) -> bool:
        """Return whether the process is in code of the user's for another than ``seat``."""
        return any(other is not seat and other.is_here and other.runner.inside() for other in self._seats)

    def set_frozen(self, *, frozen: bool) -> None:
        """Halt the process, or let it go on when nobody wants it halted."""
        with self.lock:
            if self.child is None or not self.child.is_alive():
                return
            if frozen:
                self.child.freeze()
            elif not any(seat.frozen and seat.is_here for seat in self._seats):
                self.child.thaw()


class Seat:
    """The place of one assignment in a process that trains several; to its runner it is what trains it."""

    runner: AssignmentRunner
    output = None

    def __init__(self, pack: PackRunner, assignment: p.Assignment) -> None:
        self._pack, self.name, self.replicate = pack, assignment.assignment_id, assignment.replicate
        self.command: Mapping[str, Any] | None = None
        self.asked: float | None = None
        self.frozen = False
        self._frames: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._left, self._deaf = threading.Event(), False

    def take(self, command: dict[str, Any]) -> Seat:
        """Wait until the process has been started with the command of every assignment.

        Raises:
            CannotStart: it could not be.
        """
        self.command = command
        self._pack.started.wait()
        if self._pack.error is not None:
            raise self._pack.error
        return self

    @property
    def is_here(self) -> bool:
        """Whether the process trains this assignment."""
        return self.command is not None and not self._left.is_set()

    @property
    def listens(self) -> bool:
        """Whether lines of the output may still be about this assignment: what it wrote comes after its last frame."""
        return self.command is not None and not self._deaf

    def put(self, frame: dict[str, Any]) -> None:
        """Take a frame of the process."""
        if frame["type"] == "left":
            self.close()
        elif self.is_here:
            self._frames.put(frame)

    def close(self) -> None:
        """Have no more frames."""
        self._left.set()
        self._frames.put(None)

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield its frames until it has left."""
        while (frame := self._frames.get()) is not None:
            yield frame

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a command about this assignment."""
        if self._pack.child is not None and self.is_here:
            with self._pack.lock:
                self._pack.child.send({**frame, "assignment": self.name})

    def ask_to_stop(self, seconds: float, *, for_good: bool = False) -> None:
        """Ask for a stop at the next round border; the others go on."""
        self.asked = time.monotonic()
        self.send({"type": "stop", "deadline": seconds, "for_good": for_good})

    def ask_where(self) -> None:
        """Ask the process where it stands, if it hangs."""
        child = self._pack.child
        if child is not None and self.asked is not None and self._pack.last_frame < self.asked:
            child.ask_where()

    def freeze(self) -> None:
        """Halt the process."""
        self.frozen = True
        self._pack.set_frozen(frozen=True)

    def thaw(self) -> None:
        """Let the process go on once all its leases hold."""
        self.frozen = False
        self._pack.set_frozen(frozen=False)

    def is_alive(self) -> bool:
        """Return whether the process trains this assignment."""
        return self.is_here and self._pack.child is not None and self._pack.child.is_alive()

    def is_elsewhere(self) -> bool:
        """Return whether the process is in code of the user's for another assignment."""
        return self._pack.is_elsewhere(self)

    def kill(self) -> None:
        """Give this assignment up."""
        self._pack.leave(self)

    def join(self) -> None:
        """Give the lines that were printed before the last frame a moment to come in."""
        time.sleep(_LOG_SECONDS)
        self._deaf = True

    def end(self, *, politely: bool) -> None:
        """Give up what has not left by itself."""
        del politely
        self._pack.leave(self)

    def exit_text(self) -> str:
        """Return how it ended, for people."""
        child = self._pack.child
        if child is None:
            return "not started"
        return "given up; its process trains other replicates" if child.is_alive() else child.exit_text()
