"""Starts training processes: the built-in trainer as a fork of the fork server, another one as a program.

The fork server (`worker/forkserver.py`) has imported what training needs. It is started when it is first asked, and
again when it has died. Linux kills a child when the *thread* that started it ends, so everything here is called by
the thread that lives as long as the supervisor: the main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from worker.supervision import supervisor
from worker.supervision.supervisor import Child, Ends, Process

#: Names (15 bytes at most) that the kernel and `ps -o comm` show.
SERVER_NAME, TRAINING_NAME = "lockstep-fork", "lockstep-train"
REQUESTS_FD = "LOCKSTEP_REQUESTS_FD"
_ANSWER_SECONDS = 120.0
_POLL_SECONDS = 0.2


class CannotStart(Exception):  # noqa: N818 - says what is wrong
    """No process could be started; the message says why."""


class Forked:
    """A process made by the fork server, whose parent is this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if ended else None
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return code


class ForkServer:
    """The supervisor's end of a fork server.

    Args:
        environment: what the device needs in the environment.
        log: file for what the server itself prints.
        stopped: whether nobody waits for its answer any more.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, *, stopped: Callable[[], bool]) -> None:
        self._environment, self._log, self._stopped = dict(environment), log, stopped
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def train(self, ends: Ends) -> Process:
        """Fork a training process.

        Raises:
            CannotStart: nor from a fresh server.
        """
        return self._fork({"task": "train"}, *ends)

    def tell_capabilities(self, data_dir: Path | None, answer: int, errors: int) -> Process:
        """Fork a process that writes what this installation can train into ``answer``.

        Raises:
            CannotStart: nor from a fresh server.
        """
        directory = None if data_dir is None else str(data_dir)
        return self._fork({"task": "capabilities", "data_dir": directory}, answer, errors)

    def end(self) -> None:
        """Kill the server; it has nothing to save, and what was forked from it goes on."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            supervisor.others.discard(self._process)
        self._process = self._channel = None

    def _fork(self, request: Mapping[str, object], *descriptors: int) -> Forked:
        reply = self._ask(request, descriptors)
        if reply is None and not self._stopped():  # it died since it was last asked, or while it imported
            self.end()
            reply = self._ask(request, descriptors)
        if reply is None:
            self.end()
            told = self._log.read_text(errors="replace", encoding="utf-8").strip()[-1000:]
            raise CannotStart(f"the trainer cannot be loaded: {told or f'no answer in {_ANSWER_SECONDS:.0f} s'}")
        if "error" in reply:
            raise CannotStart(f"no training process could be started: {reply['error']}")
        return Forked(int(reply["pid"]))

    def _ask(self, request: Mapping[str, object], descriptors: tuple[int, ...]) -> dict[str, Any] | None:
        """Return the answer of the server, which is started if it does not run; None when it gives none."""
        channel = self._channel or self._launch()
        give_up = time.monotonic() + _ANSWER_SECONDS
        try:
            socket.send_fds(channel, [json.dumps(request).encode()], descriptors)
            while not (self._stopped() or time.monotonic() > give_up):
                with contextlib.suppress(TimeoutError):
                    answer = channel.recv(4096)
                    found: dict[str, Any] | None = json.loads(answer) if answer else None
                    return found
        except OSError:
            pass
        return None

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_POLL_SECONDS)
        own = {"LOCKSTEP_PARENT": str(os.getpid()), REQUESTS_FD: str(theirs.fileno())}
        with theirs, self._log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "worker.forkserver"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    env={**supervisor.inherited(), **own, **self._environment},
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise CannotStart(f"no training process could be started: {error}") from error
        supervisor.others.add(self._process)
        self._channel = ours
        return ours


class Starter:
    """Starts the training processes of one device.

    Args:
        trainer: command of another trainer; None = built in.
        environment: what the device needs in its environment.
        log: file for what the fork server prints.
        stopped: whether the supervisor was told to end; what is being started then need not be waited for.
    """

    def __init__(
        self, trainer: list[str] | None, environment: Mapping[str, str], log: Path, *, stopped: Callable[[], bool]
    ) -> None:
        self._trainer, self._environment = trainer, dict(environment)
        # it takes Linux: elsewhere no process can adopt what its child has started
        self._server = ForkServer(environment, log, stopped=stopped) if sys.platform == "linux" else None
        #: Experiments of which a block was ready here: what their kernels compile to is on this machine's disk.
        self.rehearsed: set[str] = set()
        #: The last process that was started for one assignment, and the experiment it trains.
        self._last: tuple[str, Child] | None = None

    @property
    def holds(self) -> str | None:
        """The experiment that a process is free to train another assignment of; None: there is no such process."""
        if self._last is None or self._last[1].is_closed or not self._last[1].is_free:
            return None
        return self._last[0]

    def start_for(self, experiment_id: str) -> Child:
        """Return the process that is free for another assignment of the experiment, or a new one.

        Raises:
            CannotStart: says why.
        """
        if self.holds == experiment_id and self._last is not None and self._last[1].is_alive():
            self._last[1].take_up()
            return self._last[1]
        self.let_go()
        child = self.start()
        self._last = experiment_id, child
        return child

    def let_go(self) -> None:
        """End the process that is free, if there is one."""
        if self.holds is not None and self._last is not None:
            self._last[1].close()
        self._last = None

    def start(self) -> Child:
        """Start a process; its first command must be an assignment.

        Raises:
            CannotStart: says why.
        """
        if self._trainer is None and self._server is not None:
            return Child(self._server.train)
        command = self._trainer or [sys.executable, "-m", "worker.child"]
        try:
            return Child(partial(supervisor.spawn, command, self._environment))
        except OSError as error:
            raise CannotStart(f"no training process could be started: {error}") from error

    def tell_capabilities(self, data_dir: Path | None, answer: int, errors: int) -> Process:
        """Start a process that writes as JSON what this installation can train.

        Args:
            data_dir: where data sets lie.
            answer: descriptor to write it to.
            errors: descriptor for what it prints besides.

        Raises:
            CannotStart: says why.
        """
        if self._server is not None:
            probe = self._server.tell_capabilities(data_dir, answer, errors)
            if self._trainer is not None:
                self._server.end()  # it has no use any more
            return probe
        command = [sys.executable, "-m", "worker.capabilities", "capabilities", *([str(data_dir)] if data_dir else [])]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=answer, stderr=errors, env=environment)  # noqa: S603 - our own module

    def end(self) -> None:
        """End the process that is free, and the fork server."""
        self.let_go()
        if self._server is not None:
            self._server.end()
