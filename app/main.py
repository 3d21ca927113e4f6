"""Assemble the server: settings in, ASGI application out. No logic of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app import middleware, openapi, problems
from app.background import BackgroundTasks
from app.claiming import Desk
from app.exporting import Exports
from app.lanes import Lanes
from app.live import Hub
from app.routes import artifacts, experiments, exports, live, operations, pages, reports, webhooks, workers
from app.services.artifacts import FileStore
from app.services.context import Bell, Context
from app.services.operations import ensure_epoch
from app.services.throttling import Throttle
from app.settings import Settings
from app.store.database import opening
from app.store.database.engine import Limits, Store
from app.store.database.notices import Notices
from app.store.records.points import MetricNames
from lockstep.logs import configure, get_logger
from lockstep.revision import code_identity

_log = get_logger("server")
DESCRIPTION = """Lockstep A/B experiments for reinforcement learning.

Submit one experiment (arms x replicates, task, budget, registered analysis); workers train all arms of
a replicate in lockstep; follow the comparison live; read a report that says what may be concluded.
"""


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its lifespan opens the database and starts hub and background tasks."""
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
    code_identity()  # of what is loaded: the files may be others when somebody asks
    # the calls of workers are the most frequent ones, and routes are tried in order
    for module in (workers, experiments, live, reports, exports, artifacts, operations, webhooks):
        app.include_router(module.router)
    app.include_router(operations.health)
    pages.mount(app)
    problems.install(app)
    openapi.install(app)
    app.state.calls = openapi.by_tag
    middleware.install(app, settings)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    configure(settings.log_level)
    lock = opening.lock(settings.url, make_folder=not settings.database_url)
    store = open_store(settings)
    ctx = Context(
        store,
        settings,
        FileStore.of(settings),
        MetricNames(),
        Bell(),
        Throttle(settings.login_failures),
    )
    with opening.explained(settings.url):
        ensure_epoch(ctx)
    app.state.ctx = ctx
    app.state.exports = Exports()
    app.state.lanes = lanes = Lanes(ctx)
    app.state.desk = Desk(lanes.claims)
    app.state.hub = Hub(lanes.people)
    app.state.hub.start()
    tasks = BackgroundTasks(ctx)
    tasks.start()
    notices = None if store.is_sqlite else Notices(store, settings.notices_url, ctx.bell.wake)
    if notices is not None:
        ctx.bell.herald(notices.written)
        notices.start()
    _log.info("started", database=opening.shown(settings.url))
    try:
        yield
    finally:
        ctx.bell.close()
        await app.state.hub.stop()
        app.state.exports.stop()
        tasks.stop()
        if notices is not None:
            notices.stop()
        store.close()
        if lock is not None:
            lock.release()


def open_store(settings: Settings) -> Store:
    """Open the configured database with the schema of this code.

    Raises:
        UnusableDatabase: one sentence for people.
    """
    limits = Limits(settings.prepared_statements, settings.statement_timeout_seconds)
    return opening.open_store(settings.url, make_folder=not settings.database_url, limits=limits, pools=settings.pools)
