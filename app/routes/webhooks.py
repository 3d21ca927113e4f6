"""Webhooks over HTTP: who is told of what. Admins only, since the server sends to the URL they name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from app.routes import documents as d
from app.routes.deps import PAGE, Admin, ContextDep, Cursor, PageLimit, StrictRoute
from app.services import webhooks
from app.services.experiments import pages

router = APIRouter(prefix="/api/v1", tags=["webhooks"], route_class=StrictRoute)
WebhookId = Annotated[str, Path(pattern=r"^whk_[0-9a-z]{4,40}$", description="Webhook id")]


class NewWebhook(BaseModel):
    """Where to send what."""

    model_config = d.strict(url="https://chat.example/hook", events=["verdict"])

    url: str = Field(max_length=2000, description="http or https; no redirect is followed")
    events: list[Literal["end", "failure", "verdict"]] = Field(
        ["end", "failure", "verdict"], max_length=3, description="What is told"
    )
    owner: str | None = Field(None, max_length=200, description="Only of this owner's experiments (`owner_id`)")


@router.get("/webhooks", response_model=d.Page, responses=d.problems())
def list_webhooks(ctx: ContextDep, actor: Admin, cursor: Cursor = None, limit: PageLimit = PAGE) -> Any:
    """List webhooks without their secrets, with how often each has failed since it last took something."""
    return pages.cut(webhooks.listing(ctx), cursor, limit)


@router.post("/webhooks", status_code=201, response_model=d.Document, responses=d.problems())
def add_webhook(ctx: ContextDep, actor: Admin, wanted: NewWebhook) -> Any:
    """Add a webhook; the secret that signs its deliveries is shown once."""
    return webhooks.add(ctx, wanted.url, wanted.events, wanted.owner, actor)


@router.delete("/webhooks/{webhook_id}", status_code=204, responses=d.problems(404))
def remove_webhook(ctx: ContextDep, actor: Admin, webhook_id: WebhookId) -> Response:
    """Remove a webhook, with what it was still to be told."""
    webhooks.remove(ctx, webhook_id, actor)
    return Response(status_code=204)


@router.get("/webhooks/{webhook_id}/deliveries", response_model=d.Page, responses=d.problems(404))
def list_deliveries(
    ctx: ContextDep,
    actor: Admin,
    webhook_id: WebhookId,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Things a page")] = 50,
) -> Any:
    """List what a webhook was told in the last 30 days and is still to be told, the newest first."""
    return webhooks.deliveries(ctx, webhook_id, before=cursor, limit=limit)
