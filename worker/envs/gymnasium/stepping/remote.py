"""Environments in processes of their own (``env.processes``): all are told their actions, then each is waited for.

A process holds some of a block's environments, takes one message for the steps of all of them and answers in one. What
an environment does is the same there as in the training process, so the numbers are equal for any number of processes.

    python -m worker.envs.gymnasium.stepping.remote FD PARENT
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from worker.envs.faults import RAISED, EnvironmentFault, Told, last_line
from worker.envs.gymnasium.build import builder

_PR_SET_PDEATHSIG = 1
#: Seconds for the processes to close their environments before they are killed.
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Building:
    """What the processes build.

    Attributes:
        name: of the task, for messages.
        section: the spec's ``env``.
        training: whether it is trained in, or evaluated.
    """

    name: str
    section: Mapping[str, Any]
    training: bool


class RemoteEnv:
    """One environment of a process, with the calls of ``gymnasium.Env`` that a trainer makes.

    Args:
        process: that holds it.
        slot: its number there.
    """

    def __init__(self, process: _Process, slot: int) -> None:
        self.process, self.slot = process, slot

    def step(self, action: Any) -> Any:
        """Return what a step shows; one that ``Pool.begin`` has asked for is waited for."""
        if self.slot not in self.process.asked:
            self.process.ask("step", {self.slot: action})
        return self.process.answer(self.slot)

    def reset(self, *, seed: int) -> Any:
        """Return what a reset shows."""
        self.process.ask("reset", {self.slot: seed})
        return self.process.answer(self.slot)

    def close(self) -> None:
        """Do nothing: the pool closes all of them."""


class _Process:
    """A process and the questions that it has not answered yet."""

    def __init__(self, building: Building) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
            # a group of its own: SIGTERM asks the training process alone to stop, and it steps on to the round's border
            self._popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], process_group=0)  # noqa: S603 - this module
        self._pipe = Connection(ours.detach())
        self._building = building
        self.asked: set[int] = set()
        self._answers: dict[int, Any] = {}

    def ask(self, call: str, arguments: Mapping[int, Any]) -> None:
        """Call those environments; none of them may have a call unanswered."""
        self.asked |= set(arguments)
        try:
            self._pipe.send((call, dict(arguments)))
        except OSError as error:
            raise self._ended() from error

    def build(self, count: int) -> None:
        """Ask for environments in slots 0 to ``count``."""
        argument = dict(self._building.section), self._building.training
        self.ask("build", dict.fromkeys(range(count), argument))

    def answer(self, slot: int) -> Any:
        """Wait for the answer of one environment; what it raised is raised here as ``Told``."""
        if slot not in self._answers:
            try:
                self._answers |= self._pipe.recv()
            except (EOFError, OSError) as error:
                raise self._ended() from error
        self.asked.discard(slot)
        answer = self._answers.pop(slot)
        if isinstance(answer, Told):
            raise answer
        return answer

    def hang_up(self) -> None:
        """Have it close its environments and end."""
        self._pipe.close()

    def end(self, deadline: float) -> None:
        """Wait for its end; past the deadline it is killed."""
        try:
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _ended(self) -> EnvironmentFault:
        code = self._popen.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return EnvironmentFault(
            f"environment {self._building.name!r}: a process of env.processes that steps it ended {how}"
        )


class Pool:
    """Environments spread over processes.

    Args:
        building: what each environment is.
        processes: how many; never more than environments.
        count: of environments.
        alive: called as they are built.

    Attributes:
        envs: the environments, in order.
    """

    def __init__(self, building: Building, processes: int, count: int, alive: Callable[[], None]) -> None:
        self._processes: list[_Process] = []
        try:
            for _ in range(min(processes, count)):
                self._processes.append(_Process(building))
            places = [divmod(index, len(self._processes)) for index in range(count)]
            for at, process in enumerate(self._processes):
                process.build(sum(place == at for _, place in places))
            self.envs = [RemoteEnv(self._processes[at], slot) for slot, at in places]
            for env in self.envs:
                env.process.answer(env.slot)
                alive()
        except BaseException:
            self.close()
            raise

    def begin(self, steps: Sequence[tuple[RemoteEnv, Any]]) -> None:
        """Tell each process the actions of its environments; ``RemoteEnv.step`` then waits for what they show."""
        messages: dict[_Process, dict[int, Any]] = defaultdict(dict)
        for env, action in steps:
            messages[env.process][env.slot] = action
        for process, actions in messages.items():
            process.ask("step", actions)

    def close(self) -> None:
        """Close the environments and end the processes."""
        for process in self._processes:
            process.hang_up()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._processes:
            self._processes.pop().end(deadline)


def _serve(pipe: Connection) -> None:
    """Answer until the other end is closed."""
    envs: dict[int, Any] = {}
    build: Callable[[], Any] | None = None  # one for all: a pool has environments of one section

    def one(call: str, slot: int, argument: Any) -> Any:
        nonlocal build
        try:
            if call == "build":
                section, training = argument
                build = build or builder(section, training=training)
                envs[slot] = build()
                return None
            return envs[slot].step(argument) if call == "step" else envs[slot].reset(seed=argument)
        except RAISED as error:
            traceback.print_exc()
            return Told(last_line(error))

    while True:
        try:
            call, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        _send(pipe, {slot: one(call, slot, argument) for slot, argument in arguments.items()})
    for env in envs.values():
        try:
            env.close()
        except RAISED as error:
            sys.stderr.write(f"an environment raised in close: {last_line(error)}\n")


def _send(pipe: Connection, answers: Mapping[int, Any]) -> None:
    """Send the answers; one that cannot be sent to another process is what its environment raised."""
    try:
        pipe.send_bytes(ForkingPickler.dumps(answers))
    except OSError:
        raise
    except RAISED:
        pipe.send({slot: _sendable(answer) for slot, answer in answers.items()})


def _sendable(answer: Any) -> Any:
    try:
        ForkingPickler.dumps(answer)
    except RAISED as error:
        why = f"{last_line(error)}; leave env.processes out"
        return Told(f"TypeError: what it returned cannot be sent between processes: {why}")
    return answer


def main() -> None:
    """Serve the process that started this one, and end with it."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:
        _serve(Connection(descriptor))


if __name__ == "__main__":
    main()
