"""An assignment on the supervisor's side: child, frames, spool, lease, stop ladder, release.

Every step that an operator may ask for later is one line in the log: start, round handed in, refusal with its
reason, loss of the lease, end. Tokens never reach a line.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, ParamSpec, Protocol, TypeVar

from lockstep import protocol as p
from lockstep.logs import get_logger
from worker.envs import inside
from worker.supervision.control import Control, Elsewhere, LeaseLost, Refused
from worker.supervision.devices import Bound
from worker.supervision.logs import LogReader
from worker.supervision.options import Options
from worker.supervision.spool import Spool
from worker.supervision.starter import CannotStart, Starter

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")
_POLL_SECONDS = 0.2
_RELEASE_SECONDS = 120.0
#: Files that are uploaded side by side.
_UPLOADS = 4
#: Frames after which none comes.
_LAST_WORDS = ("done", "left")
_log = get_logger("worker")
_STOP_CAUSES = {"cancel": "user", "pause": "user", "drain": "preempted", "abort": "preempted"}


class Trainer(Protocol):
    """What trains an assignment: a process of its own, or a seat in one that trains several."""

    @property
    def output(self) -> IO[bytes] | None:
        """Standard output and error; None where another reads it."""
        ...

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield its frames to the last."""
        ...

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a command."""
        ...

    def ask_to_stop(self, seconds: float, *, for_good: bool = False) -> None:
        """Ask for a stop at the next round border; for good, an evaluation is not waited for either."""
        ...

    def ask_where(self) -> None:
        """Ask where it stands before it is killed."""
        ...

    def freeze(self) -> None:
        """Halt it where it stands."""
        ...

    def thaw(self) -> None:
        """Let it go on."""
        ...

    def is_alive(self) -> bool:
        """Return whether it trains the assignment."""
        ...

    def is_elsewhere(self) -> bool:
        """Return whether it is busy with what the user of another assignment wrote."""
        ...

    def kill(self) -> None:
        """End the training of the assignment at once."""
        ...

    def join(self) -> None:
        """Wait for its end after the last frame."""
        ...

    def end(self, *, politely: bool) -> None:
        """End what is left."""
        ...

    def exit_text(self) -> str:
        """Return how it ended, for people."""
        ...


def in_its_own_process(starter: Starter, experiment_id: str) -> Callable[[dict[str, Any]], Trainer]:
    """Return what hands an assignment to a process that trains nothing else; it may have trained another before."""

    def start(command: dict[str, Any]) -> Trainer:
        command["options"]["keep"] = True
        child = starter.start_for(experiment_id)
        _log.info("started", pid=child.process.pid)
        child.send({"type": "assignment", **command})
        return child

    return start


class AssignmentRunner:
    """Trains one assignment to its end.

    Args:
        control: API calls.
        assignment: what to train, with the lease.
        bound: device of this supervisor.
        directory: spool and checkpoints of this assignment.
        starter: starts training processes, and knows what has been rehearsed.
        options: the operator's choices.
        start: hands the first command to what trains; default: a process of its own.
    """

    def __init__(
        self,
        control: Control,
        assignment: p.Assignment,
        bound: Bound,
        directory: Path,
        starter: Starter,
        options: Options,
        start: Callable[[dict[str, Any]], Trainer] | None = None,
    ) -> None:
        self._control, self._lease, self._bound = control, assignment, bound
        self._start = start or in_its_own_process(starter, assignment.experiment_id)
        self._directory, self._starter, self._options = directory, starter, options
        self._spool = Spool(directory / "spool.jsonl", options.spool_bytes)
        self._inside = directory / "inside"  # the child says here when it is in code of the user's
        section = assignment.runs[0].config.get("env", {})
        self._environment = str(section.get("id") or section.get("task"))
        self._child: Trainer | None = None
        self._exit = "not started"
        self._round, self._step = assignment.resume_round, 0
        self._evaluation: dict[str, int] | None = None  # how far it is, where one takes long
        self._last_frame = self._began = time.monotonic()
        self._lost = threading.Event()
        self._all_sent = threading.Event()  # the assignment's last record has been acknowledged
        self._complete = False  # the checkpoint after the last round is with the server, which needs no more
        self._stop_cause: str | None = None
        self._for_good = False  # it was cancelled: nothing goes on from where it stops
        self._kill_at: float | None = None
        self._fence_after = float("inf")
        self._acknowledged = self._began
        self._frozen = False
        self._failure: dict[str, Any] | None = None
        self._finished = False
        self._stopped = False
        self.is_over = False  # released, or lost: nothing is reported of it any more
        self._logs = LogReader(self._spool)
        self._reading = threading.Thread()  # of the child's output, once there is a child
        self._log = _log.bind(block=assignment.block_id, attempt=assignment.attempt)

    @property
    def spool_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._spool.waiting_bytes

    @property
    def _ahead(self) -> int:
        """Rounds the child may train before the last one is acknowledged (ADR 0008).

        One where this assignment holds all arms, for nobody waits at its barrier; the checkpoint that is being
        uploaded must outlast the next one.
        """
        whole = len(self._lease.runs) == self._lease.num_arms
        return int(whole and self._lease.checkpoint_keep >= 2)

    def set_terms(self, terms: p.RegisterReply) -> None:
        """Take over ttl and interval as the server announced them."""
        self._fence_after = terms.lease_ttl_seconds - 2 * terms.heartbeat_seconds

    def progress(self) -> dict[str, Any]:
        """Return what the heartbeat reports of this assignment."""
        return {
            "assignment_id": self._lease.assignment_id,
            "lease": self._lease.lease,
            "round": self._round,
            "step": self._step,
            "frame_age_seconds": 0.0 if self._is_elsewhere() else round(time.monotonic() - self._last_frame, 2),
            "inside": self.inside(),
            "evaluation": self._evaluation,
        }

    def inside(self) -> str:
        """Return which code of the user's its training is in, in words; empty when it is in none."""
        return inside.read(self._inside, self._environment)

    def _is_elsewhere(self) -> bool:
        """Return whether what is silent is another assignment of the same process: this one waits for its turn."""
        return self._child is not None and self._child.is_elsewhere()

    def touch(self) -> None:
        """Note that the process which trains this assignment has given a sign of life."""
        self._last_frame = time.monotonic()

    def log(self, line: str) -> None:
        """Take a line that the process has printed."""
        self._logs.take(line)

    def evict(self, why: str) -> None:
        """Note that the process ended for another assignment's sake: neither this job nor the device is at fault."""
        if self._failure is None and not self._finished:
            self._failure = {"cause": "preempted", "outcome": "stopped", "detail": why}

    def heard(self, states: Sequence[p.LeaseState], sent: float) -> None:
        """Act on the server's word: renew, stop, or give up."""
        for state in states:
            if state.assignment_id != self._lease.assignment_id:
                continue
            if not state.valid:
                if not (self._all_sent.is_set() or self._complete):  # else the server has ended it with success
                    self.lose("the lease does not hold any more")
                return
            self._acknowledged = sent
            self._thaw()
            if state.desired != "run":
                within = state.stop_within_seconds if state.stop_within_seconds is not None else 60.0
                self.ask_to_stop(_STOP_CAUSES[state.desired], within, for_good=state.desired == "cancel")

    def unheard(self) -> None:
        """No heartbeat got through: freeze the child before the lease can pass to another worker."""
        if time.monotonic() - self._acknowledged > self._fence_after and not self._frozen:
            self._frozen = True
            if self._child is not None:
                self._child.freeze()

    def _thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            if self._child is not None:
                self._child.thaw()

    def lose(self, why: str) -> None:
        """The lease is lost: the child must go, its unsent results are dropped."""
        self._log.warning("lease_lost", reason=why)
        self._lost.set()
        self._spool.close()
        if self._child is not None:
            self._child.kill()  # halted as it is, if it is: another may train the block by now

    def ask_to_stop(self, cause: str, within: float = 60.0, *, for_good: bool = False) -> None:
        """Ask for a stop at the next round border, or for good within an evaluation; the first cause stays."""
        if self._stop_cause is not None and (self._for_good or not for_good):
            return
        self._stop_cause, self._for_good = self._stop_cause or cause, for_good
        self._log.info("stopping", cause=cause)
        grace = max(0.5, min(self._lease.grace_seconds, within - 2.0))
        self._kill_at = min(self._kill_at or math.inf, time.monotonic() + grace)
        if self._child is not None:
            self._child.ask_to_stop(grace, for_good=for_good)

    def run(self) -> None:
        """Start the child, relay until it ends, release the lease."""
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._fetch_checkpoint()
            self._relay(self._start_child())
        except LeaseLost as error:
            self.lose(str(error))
        except Elsewhere as error:
            self._turned_away(error)
        except CannotStart as error:
            self._log.error("not_started", reason=str(error))
            self._failure = {"cause": "worker_lost", "detail": str(error)}
        except Refused as error:
            self._log.error("refused", reason=error.detail)
            cause = "worker_lost" if error.code == "corrupt_checkpoint" else "bug"
            self._failure = {"cause": cause, "detail": f"the server refused: {error}"}
        finally:
            self._end_child()
            self._release()
            self._spool.close()
            self.is_over = True

    def _fetch_checkpoint(self) -> None:
        """Lay out the committed files of the resume round as the child wrote them."""
        if self._lease.resume_round == 0:
            return
        target = self._directory / "checkpoints" / f"round-{self._lease.resume_round:06d}"
        target.mkdir(parents=True, exist_ok=True)
        files = {}
        for run in self._lease.runs:
            if run.checkpoint is None or run.diverged:
                continue
            reference = run.checkpoint
            content = self._patient(self._control.download, self._lease, reference.sha256)
            if hashlib.sha256(content).hexdigest() != reference.sha256:
                raise LeaseLost("a checkpoint did not arrive whole")
            name = f"{run.arm}.safetensors"
            (target / name).write_bytes(content)
            files[name] = reference.sha256
        manifest = {"schema_version": 1, "next_round": self._lease.resume_round, "files": files}
        (target / "manifest.json").write_text(json.dumps(manifest, sort_keys=True), encoding="utf-8")

    def _start_child(self) -> Trainer:
        """Hand the assignment to what trains it; its log and the stop ladder begin."""
        command = {
            "assignment": self._lease.model_dump(exclude={"beside"}),
            "options": {
                "threads": self._options.threads,
                "data_dir": str(self._options.data_dir) if self._options.data_dir else None,
                "checkpoint_dir": str(self._directory / "checkpoints"),
                "device_uid": self._bound.device.uid,
                "inside": str(self._inside),
                "keep": False,
                "rehearse": self._lease.experiment_id not in self._starter.rehearsed,
            },
        }
        self._child = child = self._start(command)
        self._log.info("training", arms=[run.arm for run in self._lease.runs])
        if child.output is not None:
            self._reading = self._beside(child, "logs", partial(self._logs.read, child.output))
        self._beside(child, "ladder", partial(self._watch, child))
        return child

    def _beside(self, child: Trainer, name: str, act: Callable[[], None]) -> threading.Thread:
        """Start a thread that helps; should it die, the share ends with its error instead of waiting for it."""

        def guarded() -> None:
            try:
                act()
            except Exception as error:
                self._log.error("helper_died", thread=name, reason=repr(error))
                cause = "worker_lost" if isinstance(error, OSError) else "bug"
                self._failure = {"cause": cause, "detail": f"the worker's thread {name} died: {error!r}"}
                child.kill()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def _relay(self, child: Trainer) -> None:
        self._beside(child, "sender", partial(self._send_all, child))
        for frame in child.frames():
            self._last_frame = time.monotonic()
            kind = frame["type"]
            self._on_frame(frame)
            if kind in _LAST_WORDS:
                break  # it may hang at its exit, with the pipe open
        child.join()
        if self._reading.ident is not None:
            self._reading.join(timeout=5)
        self._spool.append("end", {})
        while not (self._all_sent.is_set() or self._lost.is_set()):
            self._all_sent.wait(_POLL_SECONDS)

    def _on_frame(self, frame: dict[str, Any]) -> None:
        kind = frame.pop("type")
        if kind == "progress":
            self._round, self._step = int(frame["round"]), int(frame["step"])
            self._evaluation = frame.get("evaluation")
        elif kind == "round":
            self._round, self._step, self._evaluation = int(frame["round"]) + 1, 0, None
            self._spool.append(kind, {"frame": frame})
        elif kind in ("ready", "refused", "checkpoint", "points"):
            self._spool.append(kind, {"frame": frame})
            if kind == "ready":
                self._starter.rehearsed.add(self._lease.experiment_id)
        elif kind == "failed":
            self._failure = frame
            # not by the output of the process, which its replicates share, and which may be cut where it ends
            self._logs.tell(str(frame.get("detail", "")))
        elif kind == "done":
            self._finished, self._stopped = True, bool(frame["stopped"])

    def _watch(self, child: Trainer) -> None:
        """The stop ladder: past the grace the whole tree is killed. The fence needs no answer of a heartbeat."""
        while child is self._child and child.is_alive():
            self.unheard()
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                if self._inside.exists() and not self._frozen:
                    child.ask_where()
                    time.sleep(_POLL_SECONDS)
                child.kill()
                return
            time.sleep(_POLL_SECONDS)

    def _send_all(self, child: Trainer) -> None:
        """Send the spool in order; ends with the record ``end``, or when the lease is lost."""
        record: dict[str, Any] | None = None
        try:
            while not self._lost.is_set():
                record = self._spool.next(timeout=1.0)
                if record is None:
                    continue
                if record["kind"] == "end":
                    break
                count = self._send_one(child, record)
                if not self._lost.is_set():
                    self._spool.acknowledge(count)
        except LeaseLost as error:
            if not self._complete:
                self.lose(str(error))
        except Refused as error:
            self._log.error("refused", record=record["kind"] if record else None, reason=error.detail)
            self._failure = {"cause": "bug", "detail": f"the server refused a record: {error}"}
            child.kill()
        except Elsewhere as error:
            self._turned_away(error)
            child.kill()
        finally:
            self._all_sent.set()

    def _turned_away(self, error: Elsewhere) -> None:
        """A proxy refuses what this assignment sends: neither the job nor the device is at fault."""
        self._log.error("refused", reason=str(error))
        self._failure = {"cause": "worker_lost", "outcome": "stopped", "detail": str(error)}

    def _send_one(self, child: Trainer, record: dict[str, Any]) -> int:
        """Send one record (log lines and points in batches); return how many records it was."""
        kind = record["kind"]
        if kind == "log":
            return self._send_logs()
        frame = record["frame"]
        if kind == "ready":
            self._ready(child, frame)
        elif kind == "refused":
            refusal = p.Refusal(field=frame["field"], message=frame["message"][:2000], remedy=frame.get("remedy", ""))
            self._patient(self._control.ready, self._lease, p.ReadyRequest(refused=refusal))
            self._failure = {"cause": "config", "detail": frame["message"]}
        elif kind == "points":
            body = json.dumps({"series": frame["series"]}).encode()
            self._patient(self._control.post_json, self._lease, "metrics", body)
        elif kind == "round":
            self._hand_in(child, frame)
        else:
            self._hand_over(child, frame)
        return 1

    def _send_logs(self) -> int:
        records = self._spool.following("log", 500)
        lines = [{"seq": item["seq"], "level": item["level"], "text": item["text"]} for item in records]
        body = json.dumps({"lines": lines, "dropped": self._spool.dropped_logs}).encode()
        self._patient(self._control.post_json, self._lease, "logs", body)
        return len(records)

    def _ready(self, child: Trainer, frame: dict[str, Any]) -> None:
        """Report ready until the start barrier opens; then the first round may go."""
        request = p.ReadyRequest.model_validate(frame)
        while not self._lost.is_set() and child.is_alive() and self._stop_cause is None:
            if self._patient(self._control.ready, self._lease, request).start:
                for ahead in range(1 + self._ahead):
                    child.send({"type": "go", "round": self._lease.resume_round + ahead})
                return
            time.sleep(_POLL_SECONDS)

    def _hand_in(self, child: Trainer, frame: dict[str, Any]) -> None:
        """Hand in a round, wait at the barrier, and let the next one go unless a checkpoint follows."""
        index = int(frame["round"])
        body = {key: frame[key] for key in ("runs", "update_order", "seconds")}
        payload = json.dumps(body).encode()
        reply = self._patient(self._control.put_round, self._lease, index, payload)
        self._log.info("round_handed_in", round=index, complete=reply.complete)
        if not reply.complete and self._lease.barrier == "round":
            self._wait_at_barrier(index)
        if not frame["checkpoint_follows"]:
            child.send({"type": "go", "round": index + 1 + self._ahead})

    def _wait_at_barrier(self, index: int) -> None:
        while not self._lost.is_set():
            reply = self._patient(self._control.barrier, self._lease, index, 20.0)
            if reply.state == "complete":
                return
            if reply.state == "aborted":
                self.ask_to_stop("preempted")
                return

    def _hand_over(self, child: Trainer, frame: dict[str, Any]) -> None:
        """Upload a checkpoint and commit it for all runs of the assignment in one call."""
        directory, next_round = Path(frame["directory"]), int(frame["next_round"])
        arms = {run.arm: run.run_id for run in self._lease.runs}
        policies = [Path(text) for text in frame["policies"]]
        uploads = [
            partial(
                self._upload, path, arms[path.parent.name], "policy", f"policy/{path.parent.name}/{path.name}", None
            )
            for path in policies
        ]
        for arm in sorted(frame["files"]):
            name = f"{arm}.safetensors"
            path, told = directory / name, f"round-{next_round:06d}/{name}"
            uploads.append(partial(self._upload, path, arms[arm], "checkpoint", told, next_round))
        with ThreadPoolExecutor(_UPLOADS) as pool:  # hashing, sending and storing one need not wait for another
            for upload in [pool.submit(upload) for upload in uploads]:
                upload.result()
        runs = [p.CommitRun(run_id=arms[arm], sha256=digest) for arm, digest in sorted(frame["files"].items())]
        body = p.CommitRequest(next_round=next_round, runs=runs).model_dump_json().encode()
        self._complete = next_round == self._lease.rounds
        try:
            self._patient(self._control.post_json, self._lease, "checkpoints", body)
        except LeaseLost:
            self._complete = False
            raise
        child.send({"type": "go", "round": next_round + self._ahead})

    def _upload(self, path: Path, run_id: str, kind: str, name: str, next_round: int | None) -> None:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        params: dict[str, Any] = {"run_id": run_id, "kind": kind, "name": name}
        if next_round is not None:
            params["next_round"] = next_round
        self._patient(self._control.upload, self._lease, digest, content, params)

    def _patient(
        self, call: Callable[ArgumentsP, ResultT], *given: ArgumentsP.args, **named: ArgumentsP.kwargs
    ) -> ResultT:
        return self._control.patiently(partial(call, *given, **named), until=self._lost.is_set)

    def _end_child(self) -> None:
        """End what trains; from here on nothing that happens to the lease touches it: it may train another."""
        child, self._child = self._child, None
        if child is not None:
            child.end(politely=not self._lost.is_set())
            self._exit = child.exit_text()

    def _release(self) -> None:
        """Tell how the assignment ended; a lost lease has nothing to release."""
        if self._lost.is_set():
            return
        outcome = self._outcome()
        send = partial(self._control.release, self._lease, outcome)
        give_up = time.monotonic() + _RELEASE_SECONDS
        try:
            self._control.patiently(send, until=lambda: self._lost.is_set() or time.monotonic() > give_up)
        except (Elsewhere, LeaseLost, Refused) as error:
            # the server's own account of this attempt stands; an operator must still see that ours was not taken
            self._log.warning("release_refused", outcome=outcome.outcome, reason=str(error))
            return
        last_line = outcome.detail.strip().rpartition("\n")[2]
        self._log.info("ended", outcome=outcome.outcome, cause=outcome.cause, detail=last_line, seconds=outcome.seconds)

    def _outcome(self) -> p.ReleaseRequest:
        seconds = time.monotonic() - self._began
        if self._finished and not self._stopped and self._failure is None:
            return p.ReleaseRequest(outcome="completed", seconds=seconds)
        if self._stop_cause is not None and self._failure is None:
            told = "stopped for good" if self._for_good else "stopped at a round border"
            detail = told if self._stopped else f"stopped: {self._exit}"
            cause: Any = self._stop_cause
            return p.ReleaseRequest(outcome="stopped", cause=cause, detail=detail, seconds=seconds)
        if self._failure is not None:
            cause = self._failure["cause"]
            detail = str(self._failure.get("detail", ""))[:20_000]
            pinned = self._failure.get("run_id")
            if cause == "oom" and len(self._lease.runs) == 1:
                pinned = self._lease.runs[0].run_id
            outcome: Any = self._failure.get("outcome", "error")
            return p.ReleaseRequest(outcome=outcome, cause=cause, detail=detail, seconds=seconds, pinned_run=pinned)
        text = self._exit
        killed = text == "killed by SIGKILL"
        tail = "\n".join(self._logs.last_lines)
        detail = f"{tail}\nthe training process ended without a word: {text}".lstrip()
        return p.ReleaseRequest(
            outcome="error", cause="worker_lost" if killed else "bug", detail=detail, seconds=seconds
        )
