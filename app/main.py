"""Assemble the server: settings in, ASGI application out. No logic of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from app import middleware, problems
from app.background import Duties
from app.live import Hub
from app.routes import artifacts, experiments, exports, live, operations, pages, reports, workers
from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.services.operations import ensure_epoch
from app.settings import Settings
from app.store import migrate
from app.store.engine import FileLock, StartupError, Store, sqlite_module, sqlite_warning
from app.store.points import MetricNames
from lockstep.logs import configure, get_logger

_log = get_logger("server")
_EXPORT_WRITERS = 2
DESCRIPTION = """Lockstep A/B experiments for reinforcement learning.

Submit one experiment (arms x replicates, task, budget, registered analysis); workers train all arms of
a replicate in lockstep; follow the comparison live; read a report that says what may be concluded.
"""


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its lifespan opens the database and starts hub and duties."""
    app = FastAPI(
        title="Lockstep",
        version="1",
        description=DESCRIPTION,
        lifespan=_lifespan,
        servers=[{"url": settings.base_path}] if settings.base_path else None,
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    # the calls of workers are the most frequent ones, and routes are tried in order
    for module in (workers, experiments, live, reports, exports, artifacts, operations):
        app.include_router(module.router)
    app.include_router(operations.health)
    pages.mount(app)
    problems.install(app)
    middleware.install(app, settings)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    configure(settings.log_level)
    lock = _lock(settings)
    store = open_store(settings)
    ctx = Context(store, settings, FileStore(settings.data_dir / "files"), MetricNames(), Bell())
    ensure_epoch(ctx)
    app.state.ctx = ctx
    app.state.export_writers = ThreadPoolExecutor(_EXPORT_WRITERS, "export")
    app.state.hub = Hub(ctx)
    app.state.hub.start()
    duties = Duties(ctx)
    duties.start()
    _log.info("started", database=store.url.render_as_string(hide_password=True))
    try:
        yield
    finally:
        await app.state.hub.stop()
        app.state.export_writers.shutdown(wait=False, cancel_futures=True)
        duties.stop()
        store.close()
        if lock is not None:
            lock.release()


def _lock(settings: Settings) -> FileLock | None:
    """One API process on SQLite."""
    if not settings.url.startswith("sqlite"):
        return None
    lock = FileLock(Path(settings.url.removeprefix("sqlite:///")))
    lock.acquire()
    return lock


def open_store(settings: Settings) -> Store:
    """Open the database; SQLite is migrated by itself, PostgreSQL must be at the newest revision.

    Raises:
        StartupError: when the database cannot be used as it is.
    """
    store = Store(settings.url)
    if store.is_sqlite:
        warning = sqlite_warning(sqlite_module().sqlite_version_info)
        if warning:
            _log.warning(warning)
        backup = migrate.upgrade(store)
        if backup is not None:
            _log.info("database migrated", backup=str(backup))
    elif not migrate.check(store):
        raise StartupError(
            "the database is not at the newest revision; back it up (`pg_dump`), then run `lockstep db upgrade`"
        )
    return store
