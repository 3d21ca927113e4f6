"""Pages from templates, of routes and of errors alike."""

from __future__ import annotations

import hashlib
import os.path
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.templating import Jinja2Templates
from starlette.responses import HTMLResponse

from app.errors import AppError
from app.settings import Settings

_WEB = Path(__file__).resolve().parent / "web"
STATIC = _WEB / "static"
_IMPORT = re.compile(r'^import [^;]* from "([^"]+)";', re.MULTILINE)
_templates = Jinja2Templates(directory=_WEB / "templates")


@cache
def content_hash() -> str:
    """Return a hash over all static files; it changes when one of them does."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def modules_of(name: str) -> tuple[str, ...]:
    """Return a script and all that it imports, so that a browser asks for them at once and not one after the other."""
    modules = {name: None}
    for module in _IMPORT.findall((STATIC / name).read_text(encoding="utf-8")):
        modules.update(dict.fromkeys(modules_of(os.path.normpath(os.path.join(os.path.dirname(name), module)))))
    return tuple(modules)


def render_page(request: Request, template_name: str, **values: Any) -> HTMLResponse:
    """Return a template with what every page has: base path, static files by their content, where it is."""
    settings: Settings = request.app.state.settings
    at = f"{settings.base_path}/static/{content_hash()}"
    here = request.url.path.removeprefix(settings.base_path) or "/"
    context = {"base": settings.base_path, "auth": settings.auth, "here": here, **values}
    context |= {"static": lambda name: f"{at}/{name}", "modules_of": modules_of}
    return _templates.TemplateResponse(request, template_name, context)


def wants_page(request: Request) -> bool:
    """Return whether a person's browser asked for a page, not a script for data."""
    path = request.url.path.removeprefix(request.app.state.settings.base_path)
    return "text/html" in request.headers.get("accept", "") and not path.startswith(("/api/", "/static/"))


def error_page(request: Request, error: AppError, request_id: str) -> HTMLResponse:
    """Return the page of an error, in the style of the house, with where to go on."""
    values = {"status": error.status, "title": error.title, "detail": error.detail, "request_id": request_id}
    page = render_page(request, "error.html", **values)
    page.status_code = error.status
    page.headers.update(error.headers)
    return page
