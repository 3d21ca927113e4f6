"""Exports that several ask for at once: one file for all who came before it was begun, and nothing left of it."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import BinaryIO

import pytest

from app.exporting import Export, Exports
from tests.awaiting import awaited
from tests.slow_readers import held_files


class Counted:
    """Writes its number of calls so far, once it is let."""

    def __init__(self) -> None:
        self.begun, self.let, self.num_calls, self.num_stopped = threading.Event(), threading.Event(), 0, 0

    def __call__(self, file: BinaryIO, stop: threading.Event) -> None:
        self.num_calls += 1
        self.begun.set()
        assert self.let.wait(60)
        self.num_stopped += stop.is_set()
        file.write(b"%d" % self.num_calls)


async def whole(export: Export) -> bytes:
    """Return all of an export."""
    content = b""
    while chunk := await export.read(len(content)):
        content += chunk
    return content


def test_who_asks_before_an_export_is_begun_shares_its_file_and_who_asks_later_gets_a_newer_one(tmp_path: Path) -> None:
    write = Counted()

    async def ask() -> None:
        exports = Exports()
        async with AsyncExitStack() as readers:
            first = await readers.enter_async_context(exports.reading("a", write, tmp_path))
            assert write.begun.wait(60)
            later = [await readers.enter_async_context(exports.reading("a", write, tmp_path)) for _ in range(50)]
            other = await readers.enter_async_context(exports.reading("b", write, tmp_path))
            assert len(held_files(tmp_path)) == len({first, *later, other}) == 3
            write.let.set()
            assert [await whole(export) for export in (first, *later, other)] == [b"1", *[b"2"] * 50, b"3"]
        assert write.num_stopped == 0
        assert not held_files(tmp_path)
        exports.stop()

    awaited(ask())


def test_the_last_who_leaves_an_export_ends_it(tmp_path: Path) -> None:
    write = Counted()

    async def leave() -> None:
        exports = Exports()
        async with exports.reading("a", write, tmp_path):
            assert write.begun.wait(60)
            async with exports.reading("a", write, tmp_path) as shared:
                async with exports.reading("a", write, tmp_path) as same:
                    assert same is shared
                assert len(held_files(tmp_path)) == 2  # one of its readers is still there
            assert len(held_files(tmp_path)) == 1
            write.let.set()
        exports.stop()

    awaited(leave())
    assert write.num_calls == 1  # the shared one had not begun when its last reader left
    assert not held_files(tmp_path)


def test_what_the_writer_raises_reaches_every_reader(tmp_path: Path) -> None:
    def fail(file: BinaryIO, stop: threading.Event) -> None:
        raise OSError("no room")

    async def ask() -> None:
        exports = Exports()
        async with exports.reading("a", fail, tmp_path) as one, exports.reading("a", fail, tmp_path) as another:
            for export in (one, another):
                with pytest.raises(OSError, match="no room"):
                    await export.read(0)
        exports.stop()

    awaited(ask())
    assert not held_files(tmp_path)
