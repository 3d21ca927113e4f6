"""Who is let in when, where some places are kept for the urgent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

from app.lanes import Line


def _run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    # in a thread of its own: beside browser tests this one has an event loop
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(main())).result()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Calls that enter a line; notes who is in, in order."""

    def __init__(self, line: Line) -> None:
        self.line, self.let_in = line, list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._enter(name))
        await _settle()

    async def go(self, name: str) -> None:
        self.line.leave(urgent=name.startswith("beat"))
        await _settle()

    async def _enter(self, name: str) -> None:
        await self.line.enter(urgent=name.startswith("beat"))
        self.let_in.append(name)


def test_the_urgent_take_any_place_and_others_leave_them_some() -> None:
    async def main() -> None:
        crowd = Crowd(Line(3, kept=1))
        await crowd.come("call 0", "call 1", "call 2", "beat 0", "beat 1")
        assert crowd.let_in == ["call 0", "call 1", "beat 0"]
        await crowd.go("beat 0")  # call 2 came first, but that place is not for it
        assert crowd.let_in[3:] == ["beat 1"]
        await crowd.go("call 0")
        assert crowd.let_in[4:] == ["call 2"]
        await crowd.go("call 1")
        await crowd.go("call 2")
        await crowd.come("beat 2", "beat 3")
        assert crowd.let_in[5:] == ["beat 2", "beat 3"]

    _run(main)


def test_of_those_who_may_come_in_the_first_does() -> None:
    async def main() -> None:
        crowd = Crowd(Line(1))
        await crowd.come("call 0", "beat 0", "call 1", "beat 1")
        for name in ("call 0", "beat 0", "call 1"):
            await crowd.go(name)
        assert crowd.let_in == ["call 0", "beat 0", "call 1", "beat 1"]

    _run(main)


def test_who_gives_up_takes_no_place_along() -> None:
    async def main() -> None:
        crowd = Crowd(Line(1))
        await crowd.come("call 0", "call 1", "call 2")
        crowd.tasks["call 1"].cancel()
        await _settle()
        await crowd.go("call 0")
        assert crowd.let_in == ["call 0", "call 2"]
        await crowd.come("call 3", "call 4")
        crowd.line.leave(urgent=False)  # call 3 gets the place, and gives up before it can take it
        crowd.tasks["call 3"].cancel()
        await _settle()
        assert crowd.let_in == ["call 0", "call 2", "call 4"]

    _run(main)
