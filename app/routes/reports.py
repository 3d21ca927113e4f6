"""Reports and exports over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version as package_version
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from app.routes import documents as d
from app.routes.conditional import tagged
from app.routes.deps import PAGE, ContextDep, Cursor, Operator, PageLimit, Reader, StrictRoute
from app.routes.experiments import ExperimentId
from app.services.experiments import pages
from app.services.results import calibration, reports
from lockstep.report.export import recompute_script
from lockstep.report.rendering.html import render_html
from lockstep.report.rendering.markdown import render_markdown

router = APIRouter(prefix="/api/v1", tags=["reports"], route_class=StrictRoute)


@router.get(
    "/experiments/{experiment_id}/report",
    responses={
        **d.problems(404, 409),
        304: {"description": "You have it: its ETag is among If-None-Match"},
        200: {
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/html": {"schema": {"type": "string"}},
                "text/markdown": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
                "text/x-python": {"schema": {"type": "string"}},
            }
        },
    },
)
def get_report(
    ctx: ContextDep,
    actor: Reader,
    request: Request,
    experiment_id: ExperimentId,
    form: Annotated[
        Literal["json", "html", "md", "csv", "py"], Query(alias="format", description="Form of the report")
    ] = "json",
    version: Annotated[int | None, Query(ge=1, le=1_000_000, description="Which report; default: the newest")] = None,
) -> Response:
    """Return an immutable report: JSON, HTML, Markdown, scores as CSV, or the script that recomputes it (py)."""
    row = reports.read(ctx, experiment_id, version)
    response = _in_form(form, row.content, row.scores_csv, f"scores-{experiment_id}.csv")
    response.headers["Lockstep-Report-Version"] = str(row.version)
    return tagged(request, response)


def _in_form(form: str, content: Mapping[str, Any], scores: str, file_name: str) -> Response:
    if form == "html":
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
        return Response(render_html(content), media_type="text/html", headers={"Content-Security-Policy": policy})
    if form == "md":
        return Response(render_markdown(content), media_type="text/markdown")
    if form == "py":
        return Response(recompute_script(), media_type="text/x-python")
    if form == "csv":
        headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
        return Response(scores, media_type="text/csv", headers=headers)
    return JSONResponse(content)


@router.get("/experiments/{experiment_id}/reports", response_model=d.Page, responses=d.problems(404))
def list_reports(
    ctx: ContextDep, actor: Reader, experiment_id: ExperimentId, cursor: Cursor = None, limit: PageLimit = PAGE
) -> Any:
    """List the versions of an experiment's report."""
    return pages.cut(reports.versions(ctx, experiment_id), cursor, limit, key="version")


class CalibrationRequest(BaseModel):
    """What to calibrate: simulated scores, or the replicates of an experiment re-randomised."""

    model_config = d.strict(repetitions=1000)

    experiment: str | None = Field(None, max_length=60)
    repetitions: int = Field(1000, ge=50, le=10_000)
    seed: int = Field(0, ge=0, le=2**62)


@router.post("/calibrations", status_code=201, response_model=d.Document, responses=d.problems(404, 409))
def calibrate_pipeline(ctx: ContextDep, actor: Operator, wanted: CalibrationRequest) -> Any:
    """Measure how often the whole analysis calls a winner where there is none; stamps later reports."""
    return calibration.calibrate(
        ctx,
        actor,
        experiment_id=wanted.experiment,
        repetitions=wanted.repetitions,
        seed=wanted.seed,
        code_version=package_version("lockstep"),
    )
