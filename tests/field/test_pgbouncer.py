"""PgBouncer in transaction mode between servers and PostgreSQL; collected where PgBouncer is installed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, text
from structlog.testing import capture_logs

from app.store.database import notices, opening
from app.store.database.engine import Limits, Store
from app.store.database.notices import Notices
from app.store.schema import tables as t
from lockstep.logs import configure
from tests.conftest import LiveServer, empty_postgres, wait_until
from tests.factories import tiny_spec
from tests.poolers import pgbouncer

pytestmark = [pytest.mark.server, pytest.mark.pg]
POOLED = Limits(prepares=False)


@pytest.fixture
def pooled_url(pg_url: str, tmp_path: Path) -> Iterator[str]:
    """An empty database by way of PgBouncer."""
    empty_postgres(pg_url)
    with pgbouncer(tmp_path, pg_url) as url:
        yield url


def test_two_servers_answer_and_hear_of_each_other_through_the_pooler(
    pooled_url: str, make_server: Callable[..., LiveServer], pg_url: str
) -> None:
    given = {"prepared_statements": False, "listen_url": pg_url}
    one, other = make_server(pooled_url, **given), make_server(pooled_url, **given)
    httpx.post(f"{one.url}/api/v1/experiments", json=tiny_spec()).raise_for_status()
    assert len(httpx.get(f"{other.url}/api/v1/experiments").json()["items"]) == 1

    def count(_: int) -> int:
        with one.ctx.store.write() as session:  # a rollback, which ends what only reads, would drop what is prepared
            return len(session.execute(select(t.experiment.c.id)).all())

    with ThreadPoolExecutor(8) as pool:  # a statement is prepared once it was executed five times
        assert set(pool.map(count, range(400))) == {1}
    rung = threading.Event()
    other.ctx.bell.subscribe(rung)
    one.ctx.bell.ring()
    assert rung.wait(60)  # nothing but a notice of the first one rings there


@pytest.mark.parametrize("is_past_it", [False, True])
def test_who_listens_through_the_pooler_says_once_that_it_hears_nothing(
    pooled_url: str, pg_url: str, monkeypatch: pytest.MonkeyPatch, is_past_it: bool
) -> None:
    monkeypatch.setattr(notices, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(notices, "_ECHO_SECONDS", 60.0 if is_past_it else 0.05)
    configure("info")
    trials: list[None] = []
    with closing(Store(pooled_url, limits=POOLED)) as store, capture_logs() as logs:
        listening = Notices(store, pg_url if is_past_it else pooled_url, lambda: trials.append(None))
        listening.start()
        wait_until(lambda: len(trials) >= (1 if is_past_it else 3), what="listening again")
        if is_past_it:
            with store.engine.begin() as connection:
                connection.execute(text("SELECT pg_notify('lockstep', 'another process')"))
            wait_until(lambda: len(trials) == 2, what="a notice")
        listening.stop()
    told = [line["reason"] for line in logs if line["log_level"] == "warning"]
    assert told == ([] if is_past_it else ["a pooler of transactions takes LISTEN; set LOCKSTEP_LISTEN_URL past it"])


def test_a_pooler_that_was_not_told_of_is_named(pooled_url: str) -> None:
    with pytest.raises(opening.UnusableDatabase, match="a pooler stands before it; set LOCKSTEP_PREPARED_STATEMENTS="):
        opening.open_store(pooled_url, limits=Limits())
