"""Following an experiment on a terminal: lines for files and pipes, a table that is drawn again for people."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import typer
from httpx import TransportError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from app.cli.text import arms_text, duration, score_text
from lockstep.client import ApiError
from lockstep.direction import isolated
from lockstep.replicates import replicates_text
from lockstep.status import ended_text

#: So long nothing may be said.
_QUIET_SECONDS = 5.0
#: Lines of rounds are at least so far apart; states and errors are told as they come.
_LINE_SECONDS = 2.0
_BAR = 20


def follow(
    frames: Iterable[dict[str, Any]], board: Board, look: Callable[[], Mapping[str, Any]], *, as_table: bool
) -> None:
    """Show the frames of an experiment until its end.

    Args:
        frames: as they come.
        board: what is known of it.
        look: asks for its document, when no frame has come for a while.
        as_table: draw a table again and again, else write lines.
    """
    found = beats(frames, _QUIET_SECONDS)
    if not as_table:
        for frame in found:
            for line in board.lines(frame) if frame is not None else [_quiet(board, look)]:
                typer.echo(line)
        return
    with Live(board.table(), console=Console(), refresh_per_second=4) as live:
        for frame in found:
            if frame is None:
                _quiet(board, look)
            else:
                list(board.lines(frame))
            live.update(board.table())


def _quiet(board: Board, look: Callable[[], Mapping[str, Any]]) -> str:
    """Return what to say when no frame has come for a while."""
    try:
        return board.waiting(look())
    except (ApiError, TransportError) as error:
        if isinstance(error, ApiError) and not error.is_away:
            raise
        return board.away()


def beats(frames: Iterable[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any] | None]:
    """Yield frames as they come, and None whenever none has come for so long; what ends them ends this."""
    found: SimpleQueue[tuple[dict[str, Any] | None, Exception | None]] = SimpleQueue()

    def read() -> None:
        try:
            for frame in frames:
                found.put((frame, None))
        except Exception as error:  # told to who waits for frames
            found.put((None, error))
        else:
            found.put((None, None))

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            frame, error = found.get(timeout=seconds)
        except Empty:
            yield None
            continue
        if error is not None:
            raise error
        if frame is None:
            return
        yield frame


class Board:
    """What is known of an experiment that is followed.

    Args:
        experiment: its document.
        clock: monotonic time, seconds.
    """

    def __init__(self, experiment: Mapping[str, Any], clock: Callable[[], float]) -> None:
        self.id = str(experiment["id"])
        self._name = isolated(experiment["name"])
        self._labels = [arm["label"] for arm in experiment["arms"]]
        self._rounds = int(experiment["rounds"])
        self._num_blocks = int(experiment["progress"]["blocks"])
        self._shown: Mapping[str, str] = experiment["shown"]
        #: By replicate: of one that is tried again, the newest block.
        self._blocks: dict[int, dict[str, Any]] = {}
        self._status = str(experiment["status"])
        self._why = ""
        self._evaluating = ""  # until the next round tells more
        self._clock = clock
        self._first: tuple[float, int] | None = None  # when how many rounds were done, at the first one seen
        self._told: float | None = None  # when rounds were last told
        self._untold = False

    def lines(self, frame: Mapping[str, Any]) -> Iterator[str]:
        """Take a frame in and yield its lines: where all replicates stand, and one for each change of state."""
        kind = frame["type"]
        if kind == "snapshot":
            self._take(frame)
        elif kind == "delta":
            for item in frame["rounds"]:
                self._round(item)
                self._untold = True
            if self._untold and (self._told is None or self._clock() - self._told >= _LINE_SECONDS):
                yield self._standing()
        elif kind == "truncate":
            yield f"a block resumes: its rounds from {frame['from_round']} on are done again"
        elif kind == "status":
            yield from self._state(frame["event"])
        elif kind == "event" and (frame["event"]["severity"] == "error" or frame["event"]["type"] == "plugin_changed"):
            yield f"{_where(frame['event'])}{frame['event']['text']}"
        elif kind == "end":
            self._status, self._why, self._evaluating = frame["status"], "", ""
            if self._untold:
                yield self._standing()
            yield f"the experiment {ended_text(frame['status'])}"

    def waiting(self, experiment: Mapping[str, Any]) -> str:
        """Return what to say when nothing has happened for a while, from a fresh document."""
        self._status = experiment["status"]
        why = experiment["why_waiting"]
        evaluation = experiment.get("evaluating")
        self._evaluating = evaluation["text"] if evaluation else ""
        self._why = f"waits: {why['text']}" if why else ""
        more = "; ".join(part for part in (self._evaluating, self._why) if part)
        return f"{self._progress()}  {self._status}" + (f"; {more}" if more else f"{self._left()}")

    def away(self) -> str:
        """Return what to say while the server does not answer."""
        self._evaluating = ""
        self._why = "the server does not answer; watching goes on when it does"
        return f"{self._progress()}  {self._why}"

    def table(self) -> Table:
        """Return everything as a table for a terminal."""
        title = f"{self._name}  {self._progress()}{self._left()}"
        caption = "; ".join(part for part in (self._status, self._evaluating, self._why) if part)
        table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
        for name in ("replicate", "state", "round", *self._labels, *self._difference_names()):
            table.add_column(name, justify="left" if name == "state" else "right")
        for block in sorted(self._blocks.values(), key=lambda block: block["replicate"]):
            table.add_row(*self._row(block))
        return table

    def _row(self, block: Mapping[str, Any]) -> list[str]:
        arms = {arm["group_id"]: arm.get(self._shown["field"]) for arm in block["comparison"].get("arms", [])}
        scores = [arms.get(label) for label in self._labels]
        first, second = (*scores, None, None)[:2]
        difference = "" if first is None or second is None else f"{second - first:+.2f}"
        texts = ["" if value is None else score_text(value, self._shown) for value in scores]
        row = [str(block["replicate"]), block["status"], f"{block['done']}/{self._rounds}", *texts]
        return [*row, difference] if len(scores) == 2 else row

    def _difference_names(self) -> list[str]:
        """Return what the difference of two arms is called: treatment minus baseline, which is named first."""
        return [f"{self._labels[1]} - {self._labels[0]}"] if len(self._labels) == 2 else []

    def _take(self, frame: Mapping[str, Any]) -> None:
        for block in frame["blocks"]:
            self._blocks[block["replicate"]] = {
                "id": block["id"],
                "replicate": block["replicate"],
                "status": block["status"],
                "done": block["complete_rounds"],
                "comparison": frame["comparisons"].get(block["id"], {}),
            }

    def _block(self, item: Mapping[str, Any]) -> dict[str, Any]:
        number, block_id = item["replicate"], item["block_id"]
        if number not in self._blocks or self._blocks[number]["id"] != block_id:
            new = {"id": block_id, "replicate": number, "status": "running", "done": 0, "comparison": {}}
            self._blocks[number] = new
        return self._blocks[number]

    def _state(self, event: Mapping[str, Any]) -> Iterator[str]:
        if event["type"] == "block_status":
            self._block(event)["status"] = event["status"]
            yield f"replicate {event['replicate']}: {event['text']}"
        elif event["cause"] == "diverged":
            yield event["text"]

    def _round(self, item: Mapping[str, Any]) -> None:
        self._evaluating = ""
        self._block(item).update(done=item["round"] + 1, comparison=item["comparison"])
        self._first = self._first or (self._clock(), self._done())

    def _standing(self) -> str:
        """Return where the replicates stand that have a round: their rounds, and the means of the arms over them."""
        self._told, self._untold = self._clock(), False
        begun = sorted((block for block in self._blocks.values() if block["done"]), key=lambda one: one["replicate"])
        done = sorted({block["done"] for block in begun})
        rounds = f"round {done[0]}/{self._rounds}" if len(done) == 1 else f"rounds {done[0]}-{done[-1]}/{self._rounds}"
        where = replicates_text([block["replicate"] for block in begun])
        return f"{self._progress()}  {where}, {rounds}  {arms_text({'arms': self._means(begun)}, self._shown)}"

    def _means(self, blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the mean of each arm over the newest rounds of replicates."""
        means: list[dict[str, Any]] = []
        for label in self._labels:
            found = [arm for one in blocks for arm in one["comparison"].get("arms", []) if arm["group_id"] == label]
            if found:
                fields = {name: mean_of(arm.get(name) for arm in found) for name in (self._shown["field"], "reward")}
                means.append({"group_id": label, "reward_mode": found[0].get("reward_mode"), **fields})
        return means

    def _done(self) -> int:
        return sum(block["done"] for block in self._blocks.values())

    def _progress(self) -> str:
        fraction = self._done() / max(1, self._rounds * self._num_blocks)
        filled = round(_BAR * fraction)
        return f"[{'#' * filled}{'.' * (_BAR - filled)}] {100 * fraction:3.0f} %"

    def _left(self) -> str:
        """Return how long it takes at the rate seen since the first round; empty while that says nothing."""
        if self._first is None or self._done() <= self._first[1]:
            return ""
        rate = (self._done() - self._first[1]) / max(1e-9, self._clock() - self._first[0])
        return f", about {duration((self._rounds * self._num_blocks - self._done()) / rate)} left"


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known, None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _where(event: Mapping[str, Any]) -> str:
    arm = event["group_id"] if event["group_id"] != "*" else None
    parts = [f"replicate {event['replicate']}" if event["replicate"] is not None else "", f"arm {arm}" if arm else ""]
    place = ", ".join(part for part in parts if part)
    return f"{place}: " if place else ""
