"""The training process: one assignment, frames on one pipe, commands on another. No token, no HTTP.

First command: the assignment. Then it reports ``ready`` (or ``refused``), and for each ``go`` trains
one round and reports ``round`` and, where due, ``checkpoint``. ``stop`` or SIGTERM ends it at the next
round border with a checkpoint. Standard output and error are the log. It is forked from the fork server, which
has imported all that training needs, or where there is none started as a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch

from lockstep.keys import derive, replicate_seed
from lockstep.nonfinite import encode_map, jsonable
from lockstep.protocol import Assignment
from lockstep.revision import code_identity
from lockstep.spec.families import FAMILIES
from worker import numerics
from worker.checkpoint import CheckpointRefused, NoCheckpoint
from worker.envs.faults import EnvironmentFault
from worker.envs.inside import INSIDE
from worker.starter import TRAINING_NAME
from worker.train.block import ArmOutOfMemory, BlockTrainer
from worker.train.plan import BlockPlan, ConfigRefused, RoundRecord, RunPlan, RunRound

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PROGRESS_SECONDS = 0.5
#: What a block loads only once it knows its assignment; none of it touches a device on import.
_PRELOADED = (
    "worker.envs.morph.family",
    "worker.envs.morph.engine.captured",
    "worker.envs.morph.network.fused.step",
    "worker.envs.gymnasium.family",
)


class Stopped(Exception):  # noqa: N818 - a request
    """A stop was asked for; the round border is reached."""


@dataclass
class Pipes:
    """Frames to the supervisor, commands from it."""

    frames: IO[bytes]
    commands: SimpleQueue[dict[str, Any]] = field(default_factory=SimpleQueue)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, kind: str, **values: Any) -> None:
        """Send one frame."""
        line = json.dumps({"type": kind, **values}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self.frames.write(line)

    def listen(self, source: IO[bytes]) -> None:
        """Read commands until the supervisor goes away (which ends this process too)."""
        for line in source:
            command = json.loads(line)
            if command["type"] == "stop":
                self.stop.set()
            self.commands.put(command)
        self.stop.set()
        self.commands.put({"type": "stop"})

    def wait_for_go(self) -> int:
        """Return the round to train next; raise ``Stopped`` on a stop."""
        command = self.commands.get()
        if command["type"] == "stop" or self.stop.is_set():
            raise Stopped
        return int(command["round"])


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


def record_of(plan: BlockPlan, device: torch.device) -> dict[str, Any]:
    """Return what the report must know of how an assignment was computed; equal for all its runs."""
    config = plan.runs[0].config
    episodes = int(config["eval"]["episodes"])
    purpose = f"eval/{FAMILIES[config['env']['kind']].keyed_by}"
    keys = [derive(plan.replicate_seed, purpose, episode=index) for index in range(episodes)]
    code = code_identity()
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    cuda = f", CUDA {torch.version.cuda}, cuDNN {cudnn}" if device.type == "cuda" else ""
    return {
        "driver": f"torch {torch.__version__}{cuda}, Python {platform.python_version()}",
        "replicate_seed": plan.replicate_seed,
        "evaluator": "frozen-policy/1",
        "eval_seeds": hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16],
        "code_revision": code.version + (f"+{code.git_sha[:12]}" if code.git_sha else ""),
        "deterministic": bool(config["lockstep"]["deterministic"]),
        "precision": config["precision"],
        "device_model": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
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
    """Reports (round, step) at most twice a second."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._last = 0.0

    def __call__(self, round_index: int, step: int) -> None:
        """Report, unless the last report is fresh."""
        now = time.monotonic()
        if now - self._last >= _PROGRESS_SECONDS:
            self._last = now
            self._send("progress", round=round_index, step=step)


def train(pipes: Pipes, assignment: Assignment, options: dict[str, Any], opened: contextlib.ExitStack) -> None:
    """Train the assignment to its end, or to a stop at a round border; what must be closed goes into ``opened``."""
    device = set_up_torch(assignment, int(options["threads"]))
    plan = plan_of(assignment)
    data_dir = Path(options["data_dir"]) if options.get("data_dir") else None
    root = Path(options["checkpoint_dir"])
    faulthandler.register(signal.SIGUSR1)  # asked by the supervisor before it kills: where this process stands
    INSIDE.share(Path(options["inside"]))
    try:
        trainer = BlockTrainer(plan, device, data_dir=data_dir, progress=Progress(pipes.send))
        opened.callback(trainer.close)
        warm_up = trainer.warm_up(rehearse=bool(options["rehearse"]))
        start = trainer.load_checkpoint(root) if assignment.resume_round else 0
        if start != assignment.resume_round:
            raise NoCheckpoint(f"found a checkpoint of round {start}, expected {assignment.resume_round}")
    except (ConfigRefused, CheckpointRefused, NoCheckpoint, FileNotFoundError) as error:
        if error.__cause__ is not None:
            traceback.print_exc()  # whose code refused, for the log
        pipes.send("refused", **_refusal(error))
        return
    # what has been built lives to the end: the collector need not walk it again and again
    gc.collect()
    gc.freeze()
    pipes.send(
        "ready",
        device_uid=device_uid(device, str(options["device_uid"])),
        resume_round=start,
        warm_up=jsonable({**warm_up, "record": record_of(plan, device)}),
    )
    stopped = _rounds(pipes, assignment, trainer, root, start)
    opened.close()
    pipes.send("done", stopped=stopped)


def _refusal(error: Exception) -> dict[str, str]:
    if isinstance(error, ConfigRefused):
        return {"field": error.field, "message": error.message, "remedy": error.remedy}
    return {"field": "checkpoint" if not isinstance(error, OSError) else "env.task", "message": str(error)}


def _rounds(pipes: Pipes, assignment: Assignment, trainer: BlockTrainer, root: Path, start: int) -> bool:
    seqs: dict[str, int] = {}
    rounds: Iterator[RoundRecord] = trainer.rounds(start)
    saved = start
    done = start
    while True:
        try:
            pipes.wait_for_go()
        except Stopped:
            if done > saved:
                _checkpoint(pipes, trainer, root, done, final=False)
            return True
        record = next(rounds, None)
        if record is None:
            return False
        done = record.round + 1
        is_last = done >= assignment.rounds
        due = is_last or done % assignment.checkpoint_every_rounds == 0 or pipes.stop.is_set()
        frame = round_frame(record, seqs)
        over = all(run["diverged"] is not None for run in frame["runs"])
        due = due and not over
        pipes.send("round", checkpoint_follows=due, **frame)
        if due:
            _checkpoint(pipes, trainer, root, done, final=is_last)
            saved = done
        if is_last or over:
            return False


def _checkpoint(pipes: Pipes, trainer: BlockTrainer, root: Path, next_round: int, *, final: bool) -> None:
    """Write a checkpoint (and at the end the policies) and name the files to upload."""
    info = trainer.save_checkpoint(root, next_round)
    files = {name.removesuffix(".safetensors"): digest for name, digest in info.files.items()}
    policies = [str(path) for path in trainer.save_policies(root / "policies")] if final else []
    pipes.send("checkpoint", next_round=next_round, directory=str(info.path), files=files, policies=policies)


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
    """Train the assignment that the first command names.

    Args:
        frames: descriptor of the pipe that frames are written to.
        commands: descriptor of the pipe that commands come from.

    Returns:
        The exit code of this process.
    """
    call_itself(TRAINING_NAME)
    pipes = Pipes(os.fdopen(frames, "wb", buffering=0))
    signal.signal(signal.SIGTERM, lambda *_: pipes.stop.set())
    source = os.fdopen(commands, "rb")
    line = source.readline()
    if not line:
        return 0  # the supervisor has gone
    first = json.loads(line)
    assignment = Assignment.model_validate(first["assignment"])
    pipes.send("progress", round=assignment.resume_round, step=0)
    threading.Thread(target=pipes.listen, args=(source,), daemon=True).start()
    failed = False
    with contextlib.ExitStack() as opened:  # closed after the failure is told: closing may fail or hang as well
        try:
            train(pipes, assignment, first["options"], opened)
        except Exception as error:
            pipes.send("failed", **failure(error))
            failed = True
    return int(failed)


def failure(error: Exception) -> dict[str, str]:
    """Return cause and account of what ended the training, and the run whose doing it was if that is known."""
    if isinstance(error, ArmOutOfMemory):
        return {"cause": "oom", "detail": str(error)[-2000:], "run_id": error.run_id}
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return {"cause": "oom", "detail": str(error)[-2000:]}
    detail = "".join(traceback.format_exception(error))
    sys.stderr.write(detail)
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
