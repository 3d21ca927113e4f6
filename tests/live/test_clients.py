"""Both clients against real servers: through a restart, and in the notebook of the examples."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings
from lockstep import AsyncClient, Client
from tests.awaiting import awaited
from tests.conftest import FAST, LiveServer, start_server
from tests.factories import SimulatedWorker, tiny_spec

pytestmark = pytest.mark.server
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def restarted(sqlite_template: Path, tmp_path: Path) -> Iterator[Callable[[], LiveServer]]:
    """Starts a server on one port and database, again and again; all are stopped at the end."""
    path = tmp_path / "lockstep.db"
    path.write_bytes(sqlite_template.read_bytes())
    given: dict[str, Any] = {**FAST, "database_url": f"sqlite:///{path}", "data_dir": tmp_path / "data"}
    started: list[LiveServer] = []

    def start() -> LiveServer:
        port = int(started[0].url.rpartition(":")[2]) if started else 0
        started.append(start_server(Settings(**given), port=port))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def test_restart_loses_no_frame_and_submits_nothing_twice(restarted: Callable[[], LiveServer]) -> None:
    server = restarted()
    frames: list[dict[str, Any]] = []
    with Client(server.url) as client:
        watched = client.submit(tiny_spec(experiment={"name": "watched"})).id
        begun = threading.Event()

        def watch() -> None:
            for frame in client.watch(watched):
                frames.append(frame)
                begun.set()

        watching = threading.Thread(target=watch)
        watching.start()
        assert begun.wait(60)
        server.stop()
        again = threading.Timer(0.7, restarted)
        again.start()

        async def submit() -> str:
            async with AsyncClient(server.url) as awaited:
                return (await awaited.submit(tiny_spec(), key="once")).id

        first = awaited(submit())
        again.join()
        assert client.submit(tiny_spec(), key="once").id == first
        assert sorted(item.id for item in client.experiments()) == sorted([watched, first])
        client.steer(watched, "cancel", "enough")
        watching.join(timeout=60)
        assert client.wait(watched, timeout=60).status == "cancelled"
    assert [frame["status"] for frame in frames if frame["type"] == "end"] == ["cancelled"]


def test_notebook_of_the_examples_runs_to_a_verdict(sqlite_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("LOCKSTEP_URL", sqlite_server.url)
    worker = SimulatedWorker(sqlite_server.ctx).register()
    stop = threading.Event()

    def train() -> None:
        while not stop.wait(0.01):
            if worker.claim() is not None:
                worker.train(rounds=worker.held.rounds)

    training = threading.Thread(target=train)
    training.start()
    try:
        cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())
        results = awaited(asyncio.wait_for(_run_cells(cells), 240))
    finally:
        stop.set()
        training.join()
    plan, submitted, rounds, experiment, difference, curves = results
    assert plan[:2] == (6, 12)
    assert experiment.id == submitted
    assert experiment.verdict.code in experiment._repr_html_()
    assert rounds > 0
    assert difference.shape == (6,)
    assert len(curves) == 12


async def _run_cells(notebook: dict[str, Any]) -> list[Any]:
    """Run the cells as a notebook does, in a running loop; return what their last lines show."""
    shown: list[Any] = []
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        for part, mode in ((tree, "exec"), (last, "eval")):
            if part is None:
                continue
            code = ast.unparse(part)
            made = eval(compile(code, "cell", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            value = await made if inspect.iscoroutine(made) else made
            shown += [value] if mode == "eval" else []
    names["client"].close()
    return shown
