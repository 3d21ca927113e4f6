"""Pages: server-rendered, filled by scripts over the API; every URL derives from the root path."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

from fastapi import APIRouter, FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from app.html import STATIC, render_page
from lockstep.spec.metrics import registered
from lockstep.spec.presets import PRESETS
from lockstep.spec.reference import fields
from lockstep.spec.template import template

router = APIRouter(include_in_schema=False)


class HashedFiles(StaticFiles):
    """Static files below a folder that is named by their content: browsers keep them for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file; the first folder is the hash, whatever it is."""
        response = await super().get_response(path.partition("/")[2], scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def mount(app: FastAPI) -> None:
    """Add pages and static files."""
    app.include_router(router)
    app.mount("/static", HashedFiles(directory=STATIC), name="static")


@router.get("/")
def home_page(request: Request) -> HTMLResponse:
    """The list of experiments."""
    return render_page(request, "home.html")


@router.get("/experiments/{experiment_id}")
def experiment_page(request: Request, experiment_id: str) -> HTMLResponse:
    """One experiment: the answer, the difference, curves, lanes, records, report."""
    return render_page(request, "experiment.html", experiment_id=experiment_id)


@router.get("/compare")
def compare_page(request: Request) -> HTMLResponse:
    """Several experiments side by side; the query names them."""
    return render_page(request, "compare.html")


@router.get("/experiments")
def experiments_page(request: Request) -> RedirectResponse:
    """The list of experiments, where a shortened address of one looks for it."""
    return RedirectResponse(f"{request.scope['root_path']}/")


@router.get("/queue")
def queue_page(request: Request) -> HTMLResponse:
    """What waits, and why."""
    return render_page(request, "queue.html")


@router.get("/new")
def new_page(request: Request) -> HTMLResponse:
    """A new experiment, with its plan."""
    known = [asdict(field) for field in fields()]
    return render_page(request, "new.html", examples=_examples(), fields=known, metrics=sorted(registered()))


@cache
def _examples() -> list[tuple[str, str]]:
    """Return what one may start from: name and specification."""
    own = [
        ("CartPole-v1, two learning rates", template(env_id="CartPole-v1")),
        ("digits, two rewards (morphogenesis)", template()),
    ]
    return [*own, *((f"preset {name}", template(preset=name)) for name in PRESETS)]


@router.get("/workers")
def workers_page(request: Request) -> HTMLResponse:
    """The workers and their devices."""
    return render_page(request, "workers.html")


@router.get("/audit")
def audit_page(request: Request) -> HTMLResponse:
    """Who did what."""
    return render_page(request, "audit.html")


@router.get("/docs")
def docs_page(request: Request) -> HTMLResponse:
    """Every call of the API, from its OpenAPI document."""
    return render_page(request, "docs.html", groups=request.app.state.calls(request.app.openapi()))


@router.get("/login")
def login_page(request: Request) -> HTMLResponse:
    """Exchange a token for a session."""
    return render_page(request, "login.html")
