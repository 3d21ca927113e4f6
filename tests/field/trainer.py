"""A trainer without torch that speaks the frame protocol and misbehaves as its first argument says.

Modes: plain, slow_stop, native, family, flood, environment, gil (held in a round until it is told ``go``), until_told
(the fourth round and those after it wait for the same word), wait_before_ready, wait_in_round, done_early and
exit_early (after the first round), no_final (no checkpoint after the last round), lost_file (each checkpoint's files
are gone), lingers (takes its time to leave), stays (never leaves), daemon (after the first round it leaves a process
that holds its pipes).
The second argument is a folder for what the test wants to know.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODE = sys.argv[1]
NOTES = Path(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.05
frames = os.fdopen(int(os.environ["LOCKSTEP_FRAMES_FD"]), "wb", buffering=0)
commands = os.fdopen(int(os.environ["LOCKSTEP_COMMANDS_FD"]), "rb")
stopped = threading.Event()


def send(kind: str, **values: Any) -> None:
    frames.write(json.dumps({"type": kind, **values}).encode() + b"\n")


def note(name: str, text: str) -> None:
    path = NOTES / name
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").replace(path)


def on_stop(*_: object) -> None:
    stopped.set()


def nest() -> None:
    """Fork grandchildren that ignore SIGTERM, one of them in a session of its own."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    pids = [subprocess.Popen([sys.executable, "-c", code], start_new_session=own).pid for own in (False, True)]
    note("pids", json.dumps([os.getpid(), *pids]))
    time.sleep(600)


def hang() -> None:
    """Loop in native code that holds the GIL and never looks at a signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("pids", json.dumps([os.getpid()]))
    re.match(r"(a+)+$", "a" * 60 + "b")


def round_of(assignment: dict[str, Any], index: int) -> dict[str, Any]:
    runs = []
    for run in assignment["runs"]:
        digest = hashlib.sha256(f"{run['arm']}{assignment['replicate']}{index}".encode()).hexdigest()
        value = int(digest[:4], 16) / 1000
        runs.append(
            {
                "run_id": run["run_id"],
                "digest": digest,
                "env_steps": (index + 1) * 10,
                "first_seq": index - assignment["resume_round"] + 1,
                "metrics": {"eval/accuracy": value},
                "episodes": [{"env_id": 0, "episode_idx": index, "round": index, "final_accuracy": value}],
            }
        )
    return {"round": index, "seconds": 0.05, "update_order": [0], "runs": runs, "checkpoint_follows": True}


def checkpoint(assignment: dict[str, Any], root: Path, next_round: int) -> None:
    directory = root / f"round-{next_round:06d}"
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for run in assignment["runs"]:
        body = f"{run['arm']} {next_round}".encode()
        (directory / f"{run['arm']}.safetensors").write_bytes(body)
        files[run["arm"]] = hashlib.sha256(body).hexdigest()
    if MODE == "lost_file":
        shutil.rmtree(directory)
    send("checkpoint", next_round=next_round, directory=str(directory), files=files, policies=[])


def is_told() -> bool:
    return (NOTES / "go").exists()


def misbehave() -> None:
    if MODE == "family":
        nest()
    elif MODE == "native":
        hang()
    elif MODE == "gil":
        note("pids", json.dumps([os.getpid()]))
        while not is_told():
            re.match(r"(a+)+$", "a" * 18 + "b")
    elif MODE == "wait_in_round":
        note("stage", MODE)
        stopped.wait(600)
    elif MODE == "flood":
        for number in range(10_000):
            sys.stdout.write(f"\r{number} of 10000")
        sys.stdout.write("\n" + "x" * 20_000 + "\n" + "nul \x00 here\n")
        sys.stdout.write("".join(f"line {number}\n" for number in range(5_000)))
        sys.stdout.flush()
    elif MODE == "environment":
        sys.stdout.write(json.dumps(dict(os.environ)) + "\n")
    time.sleep(SECONDS)


def lie(is_last: bool) -> None:
    """End after a round as if there were nothing left to do."""
    if MODE == "daemon":  # holds every pipe open for longer than any test
        subprocess.Popen(["sleep", "600"], pass_fds=(frames.fileno(),), start_new_session=True)
        sys.exit(3)
    if MODE == "done_early" or (MODE == "no_final" and is_last):
        send("done", stopped=False)
    elif MODE != "exit_early":
        return
    sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, on_stop)
    first = json.loads(commands.readline())
    assignment, options = first["assignment"], first["options"]
    root = Path(options["checkpoint_dir"])
    if MODE == "wait_before_ready":
        note("stage", MODE)
        stopped.wait(600)
        send("done", stopped=True)
        return
    send("ready", device_uid=options["device_uid"], resume_round=assignment["resume_round"], warm_up={})
    note("ready", str(os.getpid()))
    index = assignment["resume_round"]
    while index < assignment["rounds"]:
        command = json.loads(commands.readline() or '{"type": "stop"}')
        if command["type"] == "stop" or stopped.is_set():
            break
        note(f"round-{index}", "begun")
        while MODE == "until_told" and index >= 3 and not is_told() and not stopped.wait(0.02):
            pass
        misbehave()
        send("progress", round=index, step=0)
        send("round", **round_of(assignment, index))
        if MODE == "slow_stop" and stopped.wait(30.0):
            time.sleep(SECONDS)
        index += 1
        lie(index == assignment["rounds"])
        checkpoint(assignment, root, index)
        if stopped.is_set():
            break
    send("done", stopped=index < assignment["rounds"])
    if MODE == "lingers":
        time.sleep(1.5)
        sys.stdout.write("the last word of the trainer\n")
        note("went", "by itself")
    if MODE == "stays":
        time.sleep(600)


main()
