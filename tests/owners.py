"""Who trains a block at each moment, as the system's table of processes has it and not as anybody says."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

_LOOK_SECONDS = 0.02
#: Where the table of processes (proc(5)) has ``flags`` and ``signal``, the signals that wait, counted from the state;
#: the flag of a process that is on its way out (PF_EXITING), and SIGKILL.
_FLAGS, _EXITING = 6, 0x4
_PENDING, _KILL = 28, 1 << (signal.SIGKILL - 1)


class Owners:
    """Looks at the training processes of workers while the block lasts.

    Args:
        logs: of the workers, which say what they claimed and which process they started for it.

    Attributes:
        doubled: looks at which two processes trained one block, as its id and their pids.
        frozen: processes that were seen halted.
        looks: how often it has been looked.
    """

    def __init__(self, logs: Sequence[Path]) -> None:
        self._logs = logs
        self._read = dict.fromkeys(logs, 0)
        self._claimed: dict[Path, str] = {}
        self._trains: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self.doubled: list[tuple[str, int, int]] = []
        self.frozen: set[int] = set()
        self.looks = 0

    def __enter__(self) -> Owners:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for log in self._logs:
                self._follow(log)
            self._look()

    def _follow(self, log: Path) -> None:
        """Take in what a worker has said since it was last read."""
        if not log.exists():
            return
        with log.open("rb") as file:
            file.seek(self._read[log])
            whole, end, _ = file.read().rpartition(b"\n")
        self._read[log] += len(whole) + len(end)
        for line in whole.splitlines():
            if not line.startswith(b"{"):
                continue
            said = json.loads(line)
            if said["event"] == "claimed":
                self._claimed[log] = said["block"]
            elif said["event"] == "started":
                self._trains[said["pid"]] = self._claimed[log]

    def _look(self) -> None:
        self.looks += 1
        training: dict[str, int] = {}
        for pid, block in self._trains.items():
            state = _state(pid)
            if state == "T":
                self.frozen.add(pid)
            elif state not in ("", "Z", "X"):
                if block in training:
                    self.doubled.append((block, training[block], pid))
                training[block] = pid


def _state(pid: int) -> str:
    """Return the state of a process as its letter; empty when it has gone, or will not run again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    ends = int(fields[_FLAGS]) & _EXITING or int(fields[_PENDING]) & _KILL
    return "" if ends else fields[0]
