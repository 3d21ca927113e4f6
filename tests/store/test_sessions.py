"""Sessions: one that waits for a connection holds up nobody else, and none lives in a generator."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import event, text

from app.services.context import Context

APP = Path(__file__).parents[2] / "app"


def test_session_that_waits_for_a_connection_holds_up_no_other(ctx: Context) -> None:
    waits, gate = threading.Event(), threading.Event()

    def block(*_: Any) -> None:
        if threading.current_thread().name == "waiting":
            waits.set()
            gate.wait(120)

    def ask() -> None:
        with ctx.store.read() as session:
            session.execute(text("SELECT 1"))

    event.listen(ctx.store.engine, "checkout", block)
    waiting, other = threading.Thread(target=ask, name="waiting"), threading.Thread(target=ask)
    waiting.start()
    assert waits.wait(60)
    other.start()
    other.join(60)
    held_up = other.is_alive()
    gate.set()
    waiting.join()
    other.join()
    assert not held_up


def test_no_generator_of_the_server_holds_a_session() -> None:
    """A generator ends when its reader pleases; what it holds comes back with the garbage collector, or never."""
    found = [
        f"{path.relative_to(APP)}: {function.name}"
        for path in sorted(APP.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if "contextmanager" not in {ast.unparse(part) for part in function.decorator_list}
        if any(_opens_session(node) and _yields(node) for node in ast.walk(function))
    ]
    assert found == []


def _opens_session(node: ast.AST) -> bool:
    if not isinstance(node, ast.With):
        return False
    return any(ast.unparse(item.context_expr).endswith((".read()", ".write()")) for item in node.items)


def _yields(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node))
