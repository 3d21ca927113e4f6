"""The hub's tail: what is written while it reads is read next, at once."""

from __future__ import annotations

import asyncio

import pytest

import app.live
from app import lanes
from app.live import Hub
from app.services.context import Context
from app.services.experiments.live import Batch, Interest, Position
from app.services.steering import set_desired
from lockstep.status import Desired
from tests.awaiting import awaited
from tests.factories import LOCAL, submit


def test_what_is_committed_during_a_tick_is_sent_without_waiting_for_another_ring(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment_id = submit(ctx)
    read_all, pending = app.live._read_all, [Desired.RUN]

    def read_then_write(ctx: Context, positions: dict[str, Position]) -> tuple[dict[str, Batch], str]:
        batches = read_all(ctx, positions)
        if batches and pending:  # the tick has read, and has not yet come back
            set_desired(ctx, experiment_id, pending.pop(), "in a tick", LOCAL)
        return batches

    async def is_seen() -> bool:
        hub = Hub(lanes.Way(ctx, lanes.Gate("people", lanes.Line(4))))
        hub.start()
        reader = await hub.open(experiment_id, Interest(), None)
        await asyncio.to_thread(set_desired, ctx, experiment_id, Desired.PAUSE, "before it", LOCAL)
        try:
            async with asyncio.timeout(60):
                async for text in hub.follow(reader):
                    if "in a tick" in text:
                        return True
        finally:
            await hub.stop()
        return False

    monkeypatch.setattr(app.live, "_read_all", read_then_write)
    monkeypatch.setattr(app.live, "_LOOK_SECONDS", 600.0)  # so that the tail does not find it by itself
    assert awaited(is_seen())


def test_ring_is_heard_by_a_listener_that_does_not_wait(ctx: Context) -> None:
    async def heard() -> list[bool]:
        told = []
        with ctx.bell.listening() as rung:
            for _ in range(2):
                await asyncio.to_thread(ctx.bell.ring)
                await asyncio.sleep(0)
                told.append(rung.is_set())
                rung.clear()
        await asyncio.to_thread(ctx.bell.ring)
        await asyncio.sleep(0)
        return [*told, rung.is_set()]

    assert awaited(heard()) == [True, True, False]
