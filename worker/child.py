"""The training process: one assignment or several, frames on one pipe, commands on another. No token, no HTTP.

First command: the assignment, with what is to be trained beside it. Of each it reports ``ready`` (or ``refused``), and
for each ``go`` trains one round and reports ``round`` and, where due, ``checkpoint``. ``stop`` or SIGTERM ends it at
the next round border with a checkpoint, a ``stop`` that is ``for_good`` within an evaluation too. Where there are
several, a frame and a command name theirs, ``drop`` gives one up, ``left`` is the last word of one, and their rounds
are trained step by step together (``worker.train.rounds``). An assignment that had the process to itself and ended well
may bring ``free``: then another of its experiment may follow, for which everything is loaded and compiled.
Standard output and error are the log; ``END_OF_LOG`` is its last line before ``free``. The process is forked from the
fork server, which has imported all that training needs, or where there is none started as a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib
import json
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from lockstep.keys import derive, replicate_seed
from lockstep.nonfinite import encode_map, jsonable
from lockstep.plugins import identities
from lockstep.protocol import Assignment
from lockstep.revision import code_identity
from lockstep.spec.environments.families import FAMILIES
from worker import numerics
from worker.checkpoint import CheckpointRefused, NoCheckpoint
from worker.envs.faults import EnvironmentFault
from worker.envs.inside import INSIDE, shared
from worker.supervision.starter import TRAINING_NAME
from worker.supervision.supervisor import END_OF_LOG
from worker.train.block import ArmOutOfMemory, BlockTrainer
from worker.train.plan import BlockPlan, ConfigRefused, Evaluated, GivenUp, RoundRecord, RunPlan, RunRound
from worker.train.rounds import Rounds

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PROGRESS_SECONDS = 0.5
#: How long a round that was asked for waits for those of other assignments, and how often it is looked meanwhile.
_MOMENT_SECONDS, _LOOK_SECONDS = 1.0, 0.2
#: What a block loads only once it knows its assignment; none of it touches a device on import.
_PRELOADED = (
    "worker.envs.morph.family",
    "worker.envs.morph.engine.captured",
    "worker.envs.morph.network.fused.step",
    "worker.envs.gymnasium.family",
)


class Pipes:
    """Frames to the supervisor, commands from it.

    Args:
        frames: where frames are written.
    """

    def __init__(self, frames: IO[bytes]) -> None:
        self._frames, self._lock = frames, threading.Lock()
        self.changed = threading.Condition()
        self.seats: dict[str, Seat] = {}
        #: What follows the assignments of ``seats``; None when nothing does.
        self.following: dict[str, Any] | None = None

    def send(self, kind: str, **values: Any) -> None:
        """Send one frame."""
        line = json.dumps({"type": kind, **values}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self._frames.write(line)

    def listen(self, source: IO[bytes]) -> None:
        """Read commands until another assignment follows, or the supervisor goes away (which ends this process too)."""
        self.following = None
        for line in source:
            command = json.loads(line)
            if command["type"] == "assignment":
                self.following = command
                return
            named = command.get("assignment")
            with self.changed:
                for seat in [self.seats[named]] if named in self.seats else self.seats.values():
                    seat.told(command["type"], for_good=command.get("for_good", False))
                self.changed.notify_all()
        self.stop_all()

    def stop_all(self) -> None:
        """Stop everything at the next round border."""
        for seat in self.seats.values():
            seat.stops = True
        if self.changed.acquire(blocking=False):  # a signal may interrupt whoever holds it
            self.changed.notify_all()
            self.changed.release()

    def wait_for_word(self, seats: Sequence[Seat]) -> None:
        """Wait until something was asked of every seat; once it was of one, only a moment longer for the others."""
        deadline = math.inf
        with self.changed:
            while not all(seat.has_word for seat in seats):
                if any(seat.has_word for seat in seats):
                    deadline = min(deadline, time.monotonic() + _MOMENT_SECONDS)
                if time.monotonic() >= deadline:
                    return
                self.changed.wait(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))


class Seat:
    """An assignment in this process: what was asked for it, and how far it is.

    Args:
        pipes: of this process.
        given: the assignment and options, as the first command has them.
        named: whether frames name the assignment: where there are several.
    """

    def __init__(self, pipes: Pipes, given: Mapping[str, Any], *, named: bool) -> None:
        self.assignment = Assignment.model_validate(given["assignment"])
        self.options: dict[str, Any] = given["options"]
        self._pipes, self._name = pipes, {"assignment": self.assignment.assignment_id} if named else {}
        self.gos, self.stops, self.dropped = 0, False, False
        self.unwanted = False  # nobody wants what it would still give
        self.opened = contextlib.ExitStack()
        self.saved = self.done = self.start = self.assignment.resume_round
        self.seqs: dict[str, int] = {}
        self.trainer: BlockTrainer
        self.failed, self.has_left = False, False
        #: Lets what was built wait for another assignment; None where none may follow.
        self.rest: Callable[[], None] | None = None

    @property
    def has_word(self) -> bool:
        """Whether something was asked that is not done."""
        return self.gos > 0 or self.stops or self.dropped

    def told(self, kind: str, *, for_good: bool = False) -> None:
        """Take note of a command."""
        self.gos += kind == "go"
        self.stops |= kind == "stop"
        self.dropped |= kind == "drop"
        self.unwanted |= for_good or kind == "drop"

    def send(self, kind: str, **values: Any) -> None:
        """Send one frame of this assignment."""
        self._pipes.send(kind, **self._name, **values)

    @property
    def may_be_followed(self) -> bool:
        """Whether this process may train another assignment after this one: it ended well, and all code was ours."""
        return self.rest is not None and not (self.failed or self.stops or self.dropped)

    def leave(self) -> None:
        """Say the last word: whatever this process does until its end is nothing of the assignment."""
        self.has_left = True
        self.send("left")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the supervisor dies; check that it has not died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def set_up_torch(assignment: Assignment, threads: int) -> torch.device:
    """Fix the numerical settings (training.md 3.11) and return the device."""
    config = assignment.runs[0].config
    deterministic, tf32 = bool(config["lockstep"]["deterministic"]), bool(config["precision"]["tf32"])
    return numerics.set_up(deterministic=deterministic, tf32=tf32, threads=threads)


def device_uid(device: torch.device, assigned: str) -> str:
    """Return the identity of the device as this process sees it."""
    if device.type == "cpu":
        return assigned if assigned.startswith("cpu:") else "cpu"
    text = str(torch.cuda.get_device_properties(device).uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def plan_of(assignment: Assignment) -> BlockPlan:
    """Return the plan of the assignment, without runs that have diverged."""
    runs = tuple(
        RunPlan(run.run_id, run.arm, run.arm_index, run.policy, run.static_set, run.config, tuple(run.diff))
        for run in assignment.runs
        if not run.diverged
    )
    return BlockPlan(
        experiment_id=assignment.experiment_id,
        block_id=assignment.block_id,
        attempt=assignment.attempt,
        replicate=assignment.replicate,
        replicate_seed=replicate_seed(assignment.root_seed, assignment.replicate),
        rounds=assignment.rounds,
        spec_hash=assignment.spec_hash,
        runs=runs,
        num_arms=assignment.num_arms,
        reward_modes=tuple((item.mode, item.config, item.gamma) for item in assignment.reward_modes),
    )


def record_of(plan: BlockPlan, device: torch.device, limits: Mapping[str, str]) -> dict[str, Any]:
    """Return what the report must know of how an assignment was computed; equal for all its runs."""
    config = plan.runs[0].config
    episodes = int(config["eval"]["episodes"])
    purpose = f"eval/{FAMILIES[config['env']['kind']].keyed_by}"
    keys = [derive(plan.replicate_seed, purpose, episode=index) for index in range(episodes)]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    cuda = f", CUDA {torch.version.cuda}, cuDNN {cudnn}" if device.type == "cuda" else ""
    return {
        "driver": f"torch {torch.__version__}{cuda}, Python {platform.python_version()}",
        "replicate_seed": plan.replicate_seed,
        "evaluator": "frozen-policy/1",
        "eval_seeds": hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16],
        "code_revision": code_identity().text,
        "plugins": identities({str(config["env"]["id"]), *(mode for mode, _, _ in plan.reward_modes)}),
        "deterministic": bool(config["lockstep"]["deterministic"]),
        "precision": config["precision"],
        "device_model": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "limits": dict(limits),
    }


def round_frame(record: RoundRecord, seqs: dict[str, int]) -> dict[str, Any]:
    """Return a round as the wire wants it; metrics take the next sequence numbers of their run."""
    return {
        "round": record.round,
        "seconds": record.seconds,
        "update_order": [int(index) for index in record.update_order],
        "runs": [_run_of(run, seqs) for run in record.runs],
    }


def _run_of(run: RunRound, seqs: dict[str, int]) -> dict[str, Any]:
    metrics, marks = encode_map(run.metrics)
    first = seqs.get(run.run_id, 0) + 1
    seqs[run.run_id] = first + len(metrics) - 1
    return {
        "run_id": run.run_id,
        "digest": run.digest,
        "env_steps": run.env_steps,
        "first_seq": first,
        "metrics": metrics,
        "nf": marks,
        "episodes": [jsonable(row) for row in run.episodes],
        "eval_episodes": [jsonable(row) for row in run.eval_episodes],
        "events": [jsonable(event) for event in run.events],
        "diverged": run.diverged,
    }


class Progress:
    """Reports (round, step), and how far a long evaluation is, at most twice a second."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._last = 0.0

    def __call__(self, round_index: int, step: int, evaluated: Evaluated | None = None) -> None:
        """Report, unless the last report is fresh."""
        now = time.monotonic()
        if now - self._last >= _PROGRESS_SECONDS:
            self._last = now
            more = {} if evaluated is None else {"evaluation": asdict(evaluated)}
            self._send("progress", round=round_index, step=step, **more)


def train(pipes: Pipes, seats: Sequence[Seat]) -> None:
    """Train all assignments, each to its end or to a stop at a round border."""
    faulthandler.register(signal.SIGUSR1)  # asked by the supervisor before it kills: where this process stands
    ready = [seat for index, seat in enumerate(seats) if _guarded(seat, lambda: _prepare(seat, seats, index))]  # noqa: B023 - called at once
    # what has been built lives to the end: the collector need not walk it again and again
    gc.collect()
    gc.freeze()
    for seat in ready:
        seat.send("ready", **seat.options["ready"])
    _rounds(pipes, ready)


def _prepare(seat: Seat, seats: Sequence[Seat], index: int) -> bool:
    """Build the trainer of an assignment; return whether it can be trained."""
    assignment, options = seat.assignment, seat.options
    device = set_up_torch(assignment, int(options["threads"]))
    plan, root = plan_of(assignment), Path(options["checkpoint_dir"])
    data_dir = Path(options["data_dir"]) if options.get("data_dir") else None
    enter = partial(INSIDE.enter, shared(Path(options["inside"])))
    enter()
    try:
        seat.trainer = BlockTrainer(
            plan,
            device,
            data_dir=data_dir,
            progress=Progress(seat.send),
            unwanted=lambda: seat.unwanted,
            entered=enter,
            at_home=True,
        )
        seat.opened.callback(seat.trainer.close)
        seat.opened.callback(enter)  # called before it: another assignment may have been at work last
        warm_up = seat.trainer.warm_up(rehearse=bool(options["rehearse"]) and index == 0)
        start = seat.trainer.load_checkpoint(root) if assignment.resume_round else 0
        if start != assignment.resume_round:
            raise NoCheckpoint(f"found a checkpoint of round {start}, expected {assignment.resume_round}")
    except (ConfigRefused, CheckpointRefused, NoCheckpoint, FileNotFoundError) as error:
        if error.__cause__ is not None:
            traceback.print_exc()  # whose code refused, for the log
        seat.send("refused", **_refusal(error))
        seat.leave()
        return False
    beside = sorted(other.assignment.replicate for other in seats if other is not seat)
    record = record_of(plan, seat.trainer.device, seat.trainer.envs.limits)
    told = {**warm_up, "record": record, **({"packed_with": beside} if beside else {})}
    if options["keep"] and not record["plugins"]:
        seat.rest = seat.trainer.family.rest
    seat.options["ready"] = {
        "device_uid": device_uid(device, str(options["device_uid"])),
        "resume_round": start,
        "warm_up": jsonable(told),
    }
    return True


def _guarded(seat: Seat, work: Callable[[], bool]) -> bool:
    """Do the work of one assignment; when it fails, that one leaves. Return what the work does, False if it failed."""
    try:
        return work()
    except GivenUp:
        return _guarded(seat, lambda: _give_up(seat))
    except Exception as error:
        _fail(seat, error)
        return False


def _fail(seat: Seat, error: Exception) -> None:
    """Tell of a failure and close; closing may fail or hang as well."""
    seat.failed = True
    seat.send("failed", **failure(error))
    with contextlib.suppress(Exception):
        seat.opened.close()
    seat.leave()


def _give_up(seat: Seat) -> bool:
    """End within an evaluation, whose round nobody wants: no checkpoint, for nothing goes on from it."""
    if seat.dropped:
        with contextlib.suppress(Exception):
            seat.opened.close()
        seat.leave()
    else:
        _end(seat, stopped=True)
    return False


def _refusal(error: Exception) -> dict[str, str]:
    if isinstance(error, ConfigRefused):
        return {"field": error.field, "message": error.message, "remedy": error.remedy}
    return {"field": "checkpoint" if not isinstance(error, OSError) else "env.task", "message": str(error)}


def _rounds(pipes: Pipes, seats: Sequence[Seat]) -> None:
    """Train rounds as they are asked for, those of several assignments together."""
    here, rounds = list(seats), Rounds(stacked=True)
    while here:
        pipes.wait_for_word(here)
        here = [seat for seat in here if _guarded(seat, lambda: _stays(seat))]  # noqa: B023 - called at once
        due = [seat for seat in here if seat.gos > 0]
        due = [seat for seat in due if seat.done > seat.start or _guarded(seat, lambda: _begin(seat))]  # noqa: B023
        outcomes = rounds.train([(seat.trainer, seat.done) for seat in due])
        for seat, outcome in zip(due, outcomes, strict=True):
            with pipes.changed:
                seat.gos -= 1
            if isinstance(outcome, GivenUp):
                _guarded(seat, lambda: _give_up(seat))  # noqa: B023 - called at once
            elif isinstance(outcome, Exception):
                _fail(seat, outcome)
            elif _guarded(seat, lambda: _hand_in(seat, outcome)):  # noqa: B023 - called at once
                continue
            here.remove(seat)
        here = [seat for seat in here if not seat.has_left]


def _begin(seat: Seat) -> bool:
    seat.trainer.enter()
    seat.trainer.prepare(seat.start)
    return True


def _stays(seat: Seat) -> bool:
    """Return whether an assignment is trained on; one that is stopped is saved."""
    over = seat.done >= seat.assignment.rounds or all(run.diverged is not None for run in seat.trainer.runs)
    if seat.dropped:
        with contextlib.suppress(Exception):
            seat.opened.close()
        seat.leave()
    elif seat.stops or over:
        if seat.stops and seat.done > seat.saved:
            _checkpoint(seat, final=False)
        _end(seat, stopped=seat.stops)
    else:
        return True
    return False


def _hand_in(seat: Seat, record: RoundRecord) -> bool:
    """Tell of a round, with its checkpoint where one is due; return whether there is another."""
    seat.done = record.round + 1
    is_last = seat.done >= seat.assignment.rounds
    frame = round_frame(record, seat.seqs)
    over = all(run["diverged"] is not None for run in frame["runs"])
    due = is_last or seat.done % seat.assignment.checkpoint_every_rounds == 0 or seat.stops
    due = due and not over
    seat.send("round", checkpoint_follows=due, **frame)
    if due:
        _checkpoint(seat, final=is_last)
    if is_last or over:
        _end(seat, stopped=False)
        return False
    return True


def _end(seat: Seat, *, stopped: bool) -> None:
    seat.opened.close()
    seat.send("done", stopped=stopped)
    seat.leave()


def _checkpoint(seat: Seat, *, final: bool) -> None:
    """Write a checkpoint (and at the end the policies) and name the files to upload."""
    seat.trainer.enter()
    root = Path(seat.options["checkpoint_dir"])
    info = seat.trainer.save_checkpoint(root, seat.done)
    files = {name.removesuffix(".safetensors"): digest for name, digest in info.files.items()}
    policies = [str(path) for path in seat.trainer.save_policies(root / "policies")] if final else []
    seat.send("checkpoint", next_round=seat.done, directory=str(info.path), files=files, policies=policies)
    seat.saved = seat.done


def preload() -> None:
    """Import what any block may need; what cannot be imported here is refused when it is assigned."""
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    code_identity()  # of what has been imported: the files may be others when the assignment comes


def call_itself(name: str) -> None:
    """Set the name that `ps -o comm` shows (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def run(frames: int, commands: int) -> int:
    """Train what the first command names.

    Args:
        frames: descriptor of the pipe that frames are written to.
        commands: descriptor of the pipe that commands come from.

    Returns:
        The exit code of this process.
    """
    call_itself(TRAINING_NAME)
    pipes = Pipes(os.fdopen(frames, "wb", buffering=0))
    signal.signal(signal.SIGTERM, lambda *_: pipes.stop_all())
    source = os.fdopen(commands, "rb")
    line = source.readline()
    if not line:
        return 0  # the supervisor has gone
    first = json.loads(line)
    while first is not None:
        beside = first.get("beside", [])
        seats = [Seat(pipes, given, named=bool(beside)) for given in (first, *beside)]
        pipes.seats = {seat.assignment.assignment_id: seat for seat in seats}
        for seat in seats:
            seat.send("progress", round=seat.assignment.resume_round, step=0)
        listener = threading.Thread(target=pipes.listen, args=(source,), daemon=True)
        listener.start()
        train(pipes, seats)
        if not all(seat.may_be_followed for seat in seats):
            return int(all(seat.failed for seat in seats))
        for seat in seats:
            if seat.rest is not None:
                seat.rest()
        pipes.seats, seats = {}, []
        _clear()
        print(END_OF_LOG, flush=True)  # noqa: T201 - standard output is the log
        pipes.send("free")
        listener.join()
        first = pipes.following
    return 0


def _clear() -> None:
    """Give back the memory of what is used no more."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def failure(error: Exception) -> dict[str, str]:
    """Return cause and account of what ended the training, and the run whose doing it was if that is known."""
    if isinstance(error, ArmOutOfMemory):
        return {"cause": "oom", "detail": str(error)[-2000:], "run_id": error.run_id}
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return {"cause": "oom", "detail": str(error)[-2000:]}
    detail = "".join(traceback.format_exception(error))
    # what was built before training may fail to be built again: an environment of evaluation, one for each episode
    if isinstance(error, EnvironmentFault | ConfigRefused):
        return {"cause": "environment", "detail": f"{detail[-10_000:]}\n{error}"}
    return {"cause": "bug", "detail": detail[-10_000:]}


def main() -> int:
    """Run as a program that the supervisor has started."""
    die_with_parent(int(os.environ["LOCKSTEP_PARENT"]))
    preload()
    return run(int(os.environ["LOCKSTEP_FRAMES_FD"]), int(os.environ["LOCKSTEP_COMMANDS_FD"]))


if __name__ == "__main__":
    sys.exit(main())
