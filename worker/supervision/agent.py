"""The supervisor process of one device: claim, child, relay, release, again. No torch here.

Threads: the main thread claims, starts and follows the child; the heartbeat thread beats whatever the child
does; an assignment has one reader of log lines and one sender that empties the spool in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from pydantic import ValidationError

from lockstep import protocol as p
from lockstep.address import BadAddress
from lockstep.logs import get_logger
from lockstep.spec.text.faults import problems_of
from worker.supervision.assignment import AssignmentRunner
from worker.supervision.control import TRANSIENT, Control, LeaseLost, Refused, WorkerGone
from worker.supervision.devices import Bound, GpuMonitor, host_name
from worker.supervision.folder import WorkFolder
from worker.supervision.options import Options
from worker.supervision.pack import PackRunner
from worker.supervision.starter import CannotStart, Starter
from worker.supervision.supervisor import Process, become_subreaper, survived

#: Exit codes. 3: something it needs cannot be used as it is, the device among it; 4: the server refuses the token.
RETIRED, CONFIGURATION, DEVICE_IN_USE, TOKEN_REFUSED = 0, 3, 3, 4

_PROBE_SECONDS = 300.0
#: Blocks that one process trains side by side, at most.
_MOST_BLOCKS = 32
#: How often a device is asked for that an older process of this worker held lately.
_ASKS = 3
_log = get_logger("worker")


class Stopped(Exception):  # noqa: N818 - a state of affairs, not an error of ours
    """The supervisor was told to stop before it had registered."""


class Agent:
    """The life of a supervisor on a bound device."""

    def __init__(self, options: Options, bound: Bound) -> None:
        self.options = options
        self.bound = bound
        self.control = Control(options.url, options.token)
        self._heart = Control(options.url, options.token)
        self.monitor = GpuMonitor(bound.device)
        self._host = options.host or host_name()
        self._incarnation = secrets.token_hex(8)
        self._worker_id = ""
        self._asked: p.RegisterRequest | None = None
        self._terms: p.RegisterReply | None = None
        self._state = "starting"
        self._held: list[AssignmentRunner] = []
        self._drain = threading.Event()
        self._stopping = threading.Event()
        self._health = p.Health()
        self._beat_now = threading.Event()
        self._folder = WorkFolder(options.work_dir / bound.device.uid.replace(":", "_").replace("/", "_"))
        self._work = self._folder.path
        self._starter = Starter(
            options.trainer, bound.environment, self._work / "forkserver.log", stopped=self._stopping.is_set
        )

    def run(self) -> int:
        """Serve until drained or told to stop; return the exit code."""
        become_subreaper()
        with survived():
            return self._live()

    def _live(self) -> int:
        beats = threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True)
        try:
            self._greet()
            capabilities = self._capabilities()
            self._register(capabilities)
            beats.start()
            self._check_device()
            while not (self._drain.is_set() or self._stopping.is_set()):
                if not self._serve_once(capabilities) and self.options.once:
                    break
        except Refused as error:
            sys.stderr.write(f"refused: {error.detail}\n")
            self._asked = None  # it has an answer, and nothing to say goodbye to
            return _exit_code(error)
        except (Stopped, LeaseLost) as error:
            sys.stderr.write(f"stopped before the server had registered this worker: {error}\n")
        finally:
            self._stopping.set()
            self._beat_now.set()
            self._starter.end()
            self._retire()
            self._folder.close()
            self.bound.lock.release()
        return RETIRED

    def stop(self) -> None:
        """SIGTERM: drain now; the running assignment stops at its next round border (cause preempted)."""
        self._stopping.set()
        self._beat_now.set()  # without an assignment this beat is the goodbye, also while a claim waits
        for runner in self._held:
            if not runner.is_over:
                runner.ask_to_stop("preempted")

    def _greet(self) -> None:
        """Ask once whether the server takes this worker, before the slow probe; registration goes on asking."""
        try:
            self.control.greet()
        except TRANSIENT as error:
            self.control.tell(error)

    def _capabilities(self) -> dict[str, dict[str, object]]:
        answer, errors = self._work / "capabilities.json", self._work / "capabilities.log"
        try:
            with answer.open("wb") as output, errors.open("wb") as printed:
                probe = self._starter.tell_capabilities(self.options.data_dir, output.fileno(), printed.fileno())
            code = self._end_of(probe)
        except CannotStart as error:
            self._raise_if_stopped("it was still finding out what it can train")
            raise Refused(0, "probe", str(error)) from error
        self._raise_if_stopped("it was still finding out what it can train")  # the probe may have met the same signal
        if code != 0:
            told = (
                errors.read_text(errors="replace", encoding="utf-8").strip()[-1000:]
                or f"it took longer than {_PROBE_SECONDS:.0f} s"
            )
            raise Refused(0, "probe", f"the trainer cannot be loaded: {told}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        if "refused" in found:
            raise Refused(0, "plugins", found["refused"])
        return found

    def _end_of(self, probe: Process) -> int:
        """Return the exit code of the probe; kill it when it takes too long or nobody waits for it any more."""
        deadline = time.monotonic() + _PROBE_SECONDS
        while (code := probe.poll()) is None:
            if self._stopping.wait(0.02) or time.monotonic() > deadline:
                os.kill(probe.pid, signal.SIGKILL)
                return probe.wait()
        return code

    def _raise_if_stopped(self, at: str) -> None:
        if self._stopping.is_set():
            raise Stopped(at)

    def _register(self, capabilities: dict[str, dict[str, object]]) -> None:
        given = {
            "name": self.options.name or f"{self._host}-{self.bound.device.uid.rpartition(':')[2]}",
            "host": self._host,
            "incarnation": self._incarnation,
            "device": self.bound.device.model_dump(),
            "max_blocks": self._max_blocks(),
            **capabilities,
        }
        try:
            request = p.RegisterRequest.model_validate(given)
        except ValidationError as error:
            told = "; ".join(map(str, problems_of(p.RegisterRequest, given, error)))
            raise Refused(0, "announcement", told) from error
        self._raise_if_stopped("it had not asked yet")
        self._asked, self._worker_id = request, ""
        reply = self._enter(request)
        self._worker_id, self._terms = reply.worker_id, reply
        # a second heartbeat, or a round sent again, must have its chance before training is halted
        patience = (reply.lease_ttl_seconds - 2 * reply.heartbeat_seconds) / 2
        self.control.patience = self._heart.patience = patience
        _log.info("registered", worker=reply.worker_id, name=request.name, device=self.bound.device.uid)
        self._beat_now.set()

    def _max_blocks(self) -> int:
        """Return how many blocks a process may train: several where their runs can be stacked, on one thread."""
        is_plain = self.options.trainer is None and self.options.threads == 1
        return _MOST_BLOCKS if is_plain else 1

    def _enter(self, request: p.RegisterRequest) -> p.RegisterReply:
        """Register; where an older process of this worker was heard lately, wait until it would have been heard again.

        Raises:
            Refused: it lives, or another worker has the device.
        """
        asks = 0
        while True:
            asks += 1
            try:
                return self.control.patiently(lambda: self.control.register(request), until=self._stopping.is_set)
            except Refused as error:
                if error.again_in is None or asks == _ASKS:
                    raise
                _log.warning("device_in_use", reason=error.detail, asks_again_in_seconds=error.again_in)
                if self._stopping.wait(error.again_in):
                    raise Stopped("its device was in use") from error

    def _serve_once(self, capabilities: dict[str, dict[str, object]]) -> bool:
        """Claim once and train what comes; return whether there was work.

        Raises:
            BadAddress: its folder takes no files any more.
        """
        self._folder.keep()
        try:
            wait = 2.0 if self.options.once else 20.0
            assignment = self.control.claim(self._worker_id, wait)
        except TRANSIENT as error:
            self.control.tell(error)
            self._let_go()
            self._stopping.wait(random.uniform(0.2, 2.0))
            return True
        except LeaseLost:  # gone for good: an operator drained this worker while it was idle
            self._drain.set()
            return False
        except WorkerGone:
            if self._stopping.is_set():
                return False
            self._incarnation = secrets.token_hex(8)
            self._register(capabilities)
            return True
        if assignment is None:
            self._let_go()
            return False
        if self._starter.holds != assignment.experiment_id:
            self._let_go()
        self._train(assignment)
        return True

    def _let_go(self) -> None:
        """End the process that waits for another block of its experiment, and see that the device is free again."""
        if self._starter.holds is not None:
            self._starter.let_go()
            self._check_device()

    def _refuse(self, _command: dict[str, Any]) -> NoReturn:
        """Start nothing on a device that has not become free since the claim."""
        raise CannotStart(self._health.detail)

    def _train(self, assignment: p.Assignment) -> None:
        self._folder.keep()
        held = [assignment, *assignment.beside]
        for one in held:
            _log.info(
                "claimed",
                experiment=one.experiment_id,
                block=one.block_id,
                attempt=one.attempt,
                resume_round=one.resume_round,
            )
        given = (self.control, assignment, self.bound)
        if assignment.beside:
            pack = PackRunner(*given, self._work, self._starter, self.options)
            runners, run = pack.runners, pack.run
        else:
            start = None if self._health.ok else self._refuse
            place = self._work / assignment.assignment_id
            runner = AssignmentRunner(*given, place, self._starter, self.options, start)
            runners, run = [runner], runner.run
        self._state, self._held = "working", runners
        for runner in runners:
            if self._terms is not None:
                runner.set_terms(self._terms)
        self._beat_now.set()
        if self._stopping.is_set():
            for runner in runners:
                runner.ask_to_stop("preempted")
        try:
            run()
        finally:
            self._state, self._held = "cleaning", []
            for one in held:
                shutil.rmtree(self._work / one.assignment_id, ignore_errors=True)
            self._check_device()

    def _check_device(self) -> None:
        """Offer the device again only when it is well, and free of all but a process of ours that may train on."""
        self._health = self.monitor.check_free() if self._starter.holds is None else self.monitor.health()
        self._state = "idle" if self._health.ok else "quarantined"
        if not self._health.ok:
            _log.error("device_refused", device=self.bound.device.uid, reason=self._health.detail)
        self._beat_now.set()
        self._beat()  # the server must know before the next claim

    def _beat_for_ever(self) -> None:
        goodbye = False
        while not goodbye:
            interval = self._terms.heartbeat_seconds if self._terms is not None else 1.0
            self._beat_now.wait(interval)
            self._beat_now.clear()
            goodbye = self._stopping.is_set() and not self._held
            try:
                with contextlib.suppress(BadAddress):  # the next claim says so
                    self._folder.keep()
                self._beat()
            except Exception as error:  # the heart must not stop: the next beat tries again
                sys.stderr.write(f"a heartbeat failed: {error!r}\n")

    def _beat(self) -> None:
        held = [runner for runner in self._held if not runner.is_over]
        sent = time.monotonic()
        beat = p.HeartbeatRequest.model_validate(
            {
                "incarnation": self._incarnation,
                "state": "leaving" if self._stopping.is_set() and not self._held else self._state,
                "progress": [runner.progress() for runner in held],
                "health": (self.monitor.health() if self._health.ok else self._health).model_dump(),
                "spool_bytes": sum(runner.spool_bytes for runner in held),
            }
        )
        try:
            reply = self._heart.heartbeat(self._worker_id, beat)
        except TRANSIENT as error:
            self.control.tell(error)
            for runner in held:
                runner.unheard()
            return
        except (WorkerGone, LeaseLost, Refused) as error:
            if not self._stopping.is_set():  # after its goodbye a worker is not known any more
                _log.warning("heartbeat_refused", reason=str(error))
            for runner in held:
                runner.lose(f"the server refused a heartbeat: {error}")
            return
        if reply.drain:
            self._drain.set()
        for runner in held:
            runner.heard(reply.leases, sent)

    def _retire(self) -> None:
        """Say goodbye, so that nothing is given to a worker that has gone.

        The answer to a registration may be lost, so without one it is asked for once more: the server knows
        the incarnation and gives the id that it gave before.
        """
        if not self._worker_id and self._asked is not None:
            with contextlib.suppress(*TRANSIENT, WorkerGone, LeaseLost, Refused):
                self._worker_id = self._heart.register(self._asked).worker_id
        if self._worker_id:
            self._beat()
        self.control.close()
        self._heart.close()


def _exit_code(error: Refused) -> int:
    if error.code == "device_in_use":
        return DEVICE_IN_USE
    return TOKEN_REFUSED if error.status in (401, 403) else CONFIGURATION
