"""The fork server: it imports once what training needs, and forks a process for each block.

A process imports for seconds before it can train; a fork of one that has imported begins at once. So that a fork
is as good as a new process, the server computes nothing, has one thread, loads no plug-in and touches no device.
Each fork belongs to the supervisor: the process between the two ends, and the supervisor, the next subreaper
above, adopts what it forked. The supervisor alone waits for it and kills it, also when the server has died.

A request is one message of a socket, with descriptors: ``train`` (frames, commands, output) or ``capabilities``
(answer, errors). The answer is the pid, or an error.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worker import capabilities, child
from worker.supervision.starter import REQUESTS_FD, SERVER_NAME


def fork(parent: int) -> int:
    """Fork a process in a session of its own and give it to the supervisor; return its pid, and 0 in it.

    Args:
        parent: pid of the supervisor.

    Raises:
        OSError: the system has no room for another process.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reading)
        _fork_on(writing)
        child.die_with_parent(parent)
        return 0
    os.close(writing)
    with os.fdopen(reading) as pipe:
        os.waitpid(between, 0)  # only then has the supervisor adopted what it forked
        pid = pipe.read()
    if not pid:
        raise OSError("the system refuses another process")
    return int(pid)


def _fork_on(writing: int) -> None:
    """Fork once more and end; return in the new process when this one has ended."""
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid != 0:
        os._exit(0)
    os.setsid()
    os.write(writing, str(os.getpid()).encode())
    os.close(writing)
    while os.getppid() == between:
        time.sleep(0.001)


def serve(channel: socket.socket, parent: int) -> Callable[[], int] | None:
    """Answer requests; return None when the supervisor is gone, and in a fork what it is to do."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(channel, 65536, 3)
        if not content:
            return None
        answer: dict[str, Any] = {}
        try:
            answer["pid"] = fork(parent)
        except OSError as error:
            answer["error"] = str(error)
        if answer.get("pid") == 0:
            channel.close()
            request = json.loads(content)
            return partial(_TASKS[request.pop("task")], *descriptors, **request)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps(answer).encode())


def _train(frames: int, commands: int, output: int) -> int:
    _print_to(output)
    return child.run(frames, commands)


def _tell_capabilities(answer: int, errors: int, data_dir: str | None) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    _print_to(errors)
    capabilities.answer(answer, "capabilities", Path(data_dir) if data_dir else None)
    return 0


def _print_to(output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


_TASKS: dict[str, Callable[..., int]] = {"train": _train, "capabilities": _tell_capabilities}


def main() -> int:
    """Serve until the supervisor is gone; in a fork, do what was asked for."""
    parent = int(os.environ["LOCKSTEP_PARENT"])
    child.die_with_parent(parent)
    child.preload()
    child.call_itself(SERVER_NAME)
    # what has been imported lives to the end: a collection in a fork need not touch, and so copy, its pages
    gc.collect()
    gc.freeze()
    work = serve(socket.socket(fileno=int(os.environ[REQUESTS_FD])), parent)
    if work is None:
        return 0
    np.random.seed()  # noqa: TID251 - for code of users, which must not draw alike in each
    return work()


if __name__ == "__main__":
    raise SystemExit(main())
