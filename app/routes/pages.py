"""Pages: server-rendered, filled by scripts over the API; every URL derives from the root path."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from app.settings import Settings
from lockstep.spec.template import template

_WEB = Path(__file__).resolve().parents[1] / "web"
_STATIC = _WEB / "static"
_templates = Jinja2Templates(directory=_WEB / "templates")
router = APIRouter(include_in_schema=False)


class HashedFiles(StaticFiles):
    """Static files below a folder that is named by their content: browsers keep them for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file; the first folder is the hash, whatever it is."""
        response = await super().get_response(path.partition("/")[2], scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


@cache
def content_hash() -> str:
    """Return a hash over all static files; it changes when one of them does."""
    digest = hashlib.sha256()
    for path in sorted(_STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def mount(app: FastAPI) -> None:
    """Add pages and static files."""
    app.include_router(router)
    app.mount("/static", HashedFiles(directory=_STATIC), name="static")


def _page(request: Request, template_name: str, **values: Any) -> HTMLResponse:
    settings: Settings = request.app.state.settings
    at = f"{settings.base_path}/static/{content_hash()}"
    here = request.url.path.removeprefix(settings.base_path) or "/"
    context = {"base": settings.base_path, "auth": settings.auth, "here": here, **values}
    return _templates.TemplateResponse(request, template_name, {**context, "static": lambda name: f"{at}/{name}"})


@router.get("/")
def home_page(request: Request) -> HTMLResponse:
    """The list of experiments."""
    return _page(request, "home.html")


@router.get("/experiments/{experiment_id}")
def experiment_page(request: Request, experiment_id: str) -> HTMLResponse:
    """One experiment: the answer, the difference, curves, lanes, records, report."""
    return _page(request, "experiment.html", experiment_id=experiment_id)


@router.get("/queue")
def queue_page(request: Request) -> HTMLResponse:
    """What waits, and why."""
    return _page(request, "queue.html")


@router.get("/new")
def new_page(request: Request) -> HTMLResponse:
    """A new experiment, with its plan."""
    examples = [
        ("CartPole-v1, two learning rates", template(env_id="CartPole-v1")),
        ("digits, two rewards (morphogenesis)", template()),
    ]
    return _page(request, "new.html", examples=examples)


@router.get("/workers")
def workers_page(request: Request) -> HTMLResponse:
    """The workers and their devices."""
    return _page(request, "workers.html")


@router.get("/audit")
def audit_page(request: Request) -> HTMLResponse:
    """Who did what."""
    return _page(request, "audit.html")


@router.get("/docs")
def docs_page(request: Request) -> HTMLResponse:
    """Every call of the API, from its OpenAPI document."""
    return _page(request, "docs.html", groups=request.app.state.calls(request.app.openapi()))


@router.get("/login")
def login_page(request: Request) -> HTMLResponse:
    """Exchange a token for a session."""
    return _page(request, "login.html")
