"""Exports and the comparison of specifications over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from starlette.responses import StreamingResponse

from app.errors import NotInstalledError
from app.routes import documents as d
from app.routes.deps import ContextDep, Reader
from app.routes.experiments import ExperimentId
from app.services import exports

router = APIRouter(prefix="/api/v1", tags=["reports"])

_FORMS: dict[str, tuple[Any, str]] = {
    "csv": (exports.as_csv, "text/csv; charset=utf-8"),
    "json": (exports.as_json, "application/json"),
    "sqlite": (exports.as_sqlite, "application/vnd.sqlite3"),
}


@router.get(
    "/experiments/{experiment_id}/export",
    response_class=StreamingResponse,
    responses={
        **d.problems(404, 501),
        200: {
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/csv": {"schema": {"type": "string"}},
                "application/vnd.sqlite3": {"schema": {"type": "string", "format": "binary"}},
            }
        },
    },
)
def export_experiment(
    ctx: ContextDep,
    actor: Reader,
    experiment_id: ExperimentId,
    form: Annotated[Literal["json", "csv", "sqlite", "parquet"], Query(alias="format")] = "json",
) -> Response:
    """Stream an experiment: all tables as JSON or SQLite, or the training episodes as CSV."""
    exports.check(ctx, experiment_id)
    if form == "parquet":
        raise NotInstalledError("Parquet needs a library this server does not have; take sqlite, json or csv")
    make, media = _FORMS[form]
    name = f'attachment; filename="{experiment_id}.{form}"'
    return StreamingResponse(make(ctx, experiment_id), media_type=media, headers={"Content-Disposition": name})


@router.get("/compare", response_model=d.Document, responses=d.problems(404))
def compare_experiments(
    ctx: ContextDep, actor: Reader, experiments: Annotated[list[str], Query(min_length=1, max_length=8)]
) -> Any:
    """Show only the keys in which the arms of some experiments differ, arms as columns."""
    return exports.compare(ctx, experiments)
