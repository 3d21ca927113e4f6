"""Pages: server-rendered, filled by one script over the API; every URL derives from the root path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.responses import HTMLResponse

from app.settings import Settings

_WEB = Path(__file__).resolve().parents[1] / "web"
_templates = Jinja2Templates(directory=_WEB / "templates")
router = APIRouter(include_in_schema=False)


def mount(app: FastAPI) -> None:
    """Add pages and static files."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=_WEB / "static"), name="static")


def _page(request: Request, template: str, **values: Any) -> HTMLResponse:
    settings: Settings = request.app.state.settings
    context = {"base": settings.base_path, "auth": settings.auth, **values}
    return _templates.TemplateResponse(request, template, context)


@router.get("/")
def queue_page(request: Request) -> HTMLResponse:
    """The list of experiments and the queue."""
    return _page(request, "queue.html")


@router.get("/experiments/{experiment_id}")
def experiment_page(request: Request, experiment_id: str) -> HTMLResponse:
    """One experiment: live curves and report."""
    return _page(request, "experiment.html", experiment_id=experiment_id)


@router.get("/workers")
def workers_page(request: Request) -> HTMLResponse:
    """The workers and their devices."""
    return _page(request, "workers.html")


@router.get("/login")
def login_page(request: Request) -> HTMLResponse:
    """Exchange a token for a session."""
    return _page(request, "login.html")
