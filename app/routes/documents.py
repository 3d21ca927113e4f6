"""Response models of the public API, for the OpenAPI document and generated clients."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lockstep.spec.template import template
from lockstep.spec.text.reading import load_text

#: Where the OpenAPI document has the schema of a specification.
SPECIFICATION = "#/components/schemas/Specification"
SPEC_TEXT = template(env_id="CartPole-v1")
SPEC_EXAMPLE = load_text(SPEC_TEXT)


def strict(**example: Any) -> ConfigDict:
    """Return the configuration of a body: no unknown key, and an example."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class Document(BaseModel):
    """Base of responses: extra keys may be added in later versions."""

    model_config = ConfigDict(extra="allow")


class ProblemItem(Document):
    """One finding of a refused request."""

    pointer: str
    code: str
    message: str
    remedy: str = ""


class ProblemDocument(Document):
    """An error as RFC 9457 problem+json."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[ProblemItem] = Field(default_factory=list)


class Session(Document):
    """Who asks, and what they may do; which server answers."""

    name: str
    owner_id: str
    role: str
    version: str
    epoch: str


class Links(Document):
    """Where to go on."""

    self: str
    page: str
    report: str
    stream: str
    websocket: str


class Submitted(Document):
    """A stored experiment and how to follow it."""

    id: str
    status: str
    links: Links
    commands: dict[str, str]
    warnings: list[str]


class ExperimentPage(Document):
    """A page of experiments; ``next`` is null at the end."""

    items: list[dict[str, Any]]
    next: str | None


class CauseItem(Document):
    """Why some replicates gave no result: by whose code where it is that of some arms; ``run_id`` has the log."""

    cause: str
    status: str
    text: str
    arms: list[str]
    replicates: list[int]
    run_id: str | None


class RepeatItem(Document):
    """Why attempts of some replicates stopped that later attempts made up for."""

    cause: str
    text: str
    replicates: list[int]


class EvaluatingItem(Document):
    """How far the long evaluations of an experiment are, of all arms."""

    text: str
    replicates: list[int]
    over: int
    episodes: int
    steps: int
    max_steps: int


class ExperimentDocument(Document):
    """An experiment."""

    id: str
    name: str
    status: str
    spec: dict[str, Any]
    arms: list[dict[str, Any]]
    shown: dict[str, str]
    progress: dict[str, Any]
    why_waiting: dict[str, Any] | None
    evaluating: EvaluatingItem | None
    causes: list[CauseItem]
    repeats: list[RepeatItem]
    version: int
    cursor: str


class Page(Document):
    """A page of things; pass ``next`` as cursor."""

    items: list[dict[str, Any]]
    next: Any


class QueueDocument(Page):
    """A page of what waits, in order and with its expected start, and what runs."""

    paused: bool
    running: list[dict[str, Any]]


class PlanDocument(Document):
    """What a specification would run."""

    num_blocks: int
    num_runs: int
    placement: str
    warnings: list[str]
    spec: dict[str, Any]
    spec_hash: str


class DesiredReply(Document):
    """The desired state as stored."""

    id: str
    desired: str
    changed: bool


class BlocksReply(Document):
    """Ids of new blocks."""

    blocks: list[str]


class SeriesReply(Document):
    """Bucketed series."""

    x: str
    series: list[dict[str, Any]]


class GraftRound(Document):
    """The graft events of one round of a run: steps count from 0 to ``horizon`` - 1 in every environment."""

    run_id: str
    round: int
    rounds: int
    horizon: int
    envs: list[int]
    changes: list[dict[str, Any]]


_TEXTS = {
    400: "Malformed request",
    401: "Not authenticated",
    403: "The role does not allow this",
    404: "Not found",
    409: "The state does not allow this",
    410: "It is no more",
    412: "Another version",
    413: "Too large",
    422: "Refused, with fields",
    426: "Protocol too old",
    429: "Too often, try again later",
    501: "Not installed",
    503: "Busy, try again",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route: problem+json for each status, 400, 401, 403 and 503 always."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    every = sorted({400, 401, 403, 413, 422, 503, *statuses})
    return {status: {"description": _TEXTS[status], "content": content} for status in every}
