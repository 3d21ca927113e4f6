"""The wire contract between worker and control plane (control-plane.md 4 to 8).

Both sides import these models, so a field cannot drift. Every call for an assignment carries its
lease token in the header ``Lockstep-Lease``. The frames between supervisor and training child are
here too; they are published as JSON Schema by ``lockstep``'s OpenAPI document.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockstep.quoting import quoted
from lockstep.spec.text.schemas import schema_fault
from lockstep.text import Line, Name, Searched

#: 2: an assignment tells each arm's differences. 3: and the discount of each reward of cross-evaluation.
#: 4: progress tells which code of the user's a training process is in. 5: a registration brings registries of tasks.
#: 6: a worker tells how many blocks it can hold at once, and may be given several. 7: progress tells how far an
#: evaluation is.
PROTOCOL_VERSION = 7
LEASE_HEADER = "Lockstep-Lease"
#: Of a file that goes in pieces; nginx takes 1 MiB where nobody has said otherwise.
PIECE_BYTES = 512 * 1024
MAX_POINTS = 5_000
MAX_METRIC_NAMES = 200
MAX_METRIC_NAME = 128
MAX_LOG_LINE_BYTES = 8_192
#: Characters of a name, of another text and of the JSON of one plug-in that a worker announces: its row is read at
#: every turn of the queue.
MAX_NAME, MAX_TEXT, MAX_FACTS = 200, 1_000, 50_000

MetricName = Annotated[str, Field(min_length=1, max_length=MAX_METRIC_NAME, pattern=r"^[\w./:-]+$")]
Nonfinite = Literal["nan", "inf", "-inf"]
Severity = Literal["debug", "info", "warning", "error"]
Integer = Annotated[int, Field(ge=0, le=2**53)]
#: Numbers of rounds, steps of an episode and sequence numbers: 32 bits hold them, and a batch of points more.
Small = Annotated[int, Field(ge=0, le=2_000_000_000)]


class _Columns(BaseModel):
    """What is stored of a record in columns of their own, or reckoned with, where it is there."""

    model_config = ConfigDict(strict=True)


class _EpisodeColumns(_Columns):
    round: Small | None = None
    env_id: Small | None = None
    episode_idx: Small | None = None
    env_steps: Small | None = None
    n_contributing: Small | None = None
    host_seed_key: Annotated[str, Field(max_length=64)] | int | None = None  # of either family
    outcome: Annotated[str, Field(max_length=32)] | None = None
    mode: Annotated[str, Field(max_length=16)] | None = None
    split: Annotated[str, Field(max_length=16)] | None = None
    final_accuracy: float | None = None
    committed_accuracy: float | None = None
    best_accuracy: float | None = None
    test_accuracy: float | None = None
    episode_reward: float | None = None
    episode_return_raw: float | None = None
    final_loss: float | None = None
    param_ratio: float | None = None
    native_return: float | None = None
    success: bool | float | None = None


class _EventColumns(_Columns):
    env_id: Small | None = None
    severity: Severity = "info"


def _fitting(columns: type[_Columns]) -> AfterValidator:
    """Return the check that a record's values fit their columns; the record stays as it is."""

    def check(record: dict[str, Any]) -> dict[str, Any]:
        try:
            columns.model_validate(record)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise ValueError(f"{first['loc'][0]} does not fit its column: {first['msg']}") from error
        return record

    return AfterValidator(check)


Episode = Annotated[dict[str, Any], _fitting(_EpisodeColumns)]
TrainingEvent = Annotated[dict[str, Any], _fitting(_EventColumns)]


def version_problem(version: int, *, peer: str, side: str) -> str | None:
    """Return why this side cannot work with a peer of that version, in a sentence; None where it can.

    Args:
        version: what the peer speaks.
        peer: what it is, for people: server or worker.
        side: what this side is.
    """
    if version == PROTOCOL_VERSION:
        return None
    older = peer if version < PROTOCOL_VERSION else side
    spoken = f"the {peer} speaks protocol {version} and this {side} protocol {PROTOCOL_VERSION}"
    return f"{spoken}: upgrade lockstep on the {older}, so that both are of one version"


class Wire(BaseModel):
    """Base of all messages: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(Wire):
    """The one device of a worker, by identity.

    Attributes:
        uid: ``GPU-<uuid>``, ``MIG-<uuid>`` or ``cpu:<host>:<n>``; never an ordinal.
        device_class: equal for devices that may share a block.
    """

    uid: Name
    kind: Literal["cpu", "gpu"]
    device_class: Name
    model: Name
    memory_bytes: Integer
    capability: Line | None = None

    @model_validator(mode="after")
    def _is_an_identity(self) -> Device:
        beginnings = ("cpu:",) if self.kind == "cpu" else ("GPU-", "MIG-")
        if not self.uid.startswith(beginnings):
            raise ValueError(
                f"uid {quoted(self.uid)} is no identity of a {self.kind}; name a GPU GPU-<uuid> or MIG-<uuid> and a "
                "CPU slot cpu:<host>:<n>, for numbers change and every host has the same"
            )
        return self


class TaskGroup(Wire):
    """Tasks of one constructor in the registry of an environment package.

    Attributes:
        ids: of the tasks.
        arguments: names of the keyword arguments that they take; None where they take any.
        defect: why none of them can be built there.
    """

    ids: list[Name]
    arguments: list[Name] | None = None
    defect: Annotated[str, Field(max_length=MAX_TEXT)] | None = None


def environment_fault(facts: dict[str, Any]) -> str | None:
    """Return in a sentence why what is announced of an environment cannot be used, None where it can."""
    return _length_fault(facts) or schema_fault(facts)


def reward_fault(facts: dict[str, Any]) -> str | None:
    """Return in a sentence why what is announced of a reward cannot be used, None where it can."""
    for name in ("env_kinds", "tasks"):
        if not isinstance(facts.get(name, []), list) or not all(isinstance(text, str) for text in facts.get(name, [])):
            return f"{name} must be a list of names"
    return _length_fault(facts) or schema_fault(facts.get("schema", {}))


def _length_fault(facts: dict[str, Any]) -> str | None:
    defect = facts.get("defect", "")
    if not isinstance(defect, str):
        return "defect must be a text; leave it out without one"
    if len(defect) > MAX_TEXT:
        return f"defect has {len(defect)} characters; use at most {MAX_TEXT}"
    size = len(json.dumps(facts, default=str))
    return f"it has {size} characters of JSON; use at most {MAX_FACTS}" if size > MAX_FACTS else None


def _bounded(longest: int) -> AfterValidator:
    """Return the check of what is announced by name; pydantic would tell of a long name by all of it."""

    def check(announced: dict[str, Any]) -> dict[str, Any]:
        for name, value in announced.items():
            if len(name) > longest:
                raise ValueError(f"the name {quoted(name)} has {len(name)} characters; use at most {longest}")
            if isinstance(value, str) and len(value) > MAX_TEXT:
                told = f"what stands under {quoted(name)} has {len(value)} characters"
                raise ValueError(f"{told}; use at most {MAX_TEXT}")
        return announced

    return AfterValidator(check)


def _check_environment(facts: dict[str, Any]) -> dict[str, Any]:
    if "tasks" in facts:
        raise ValueError("tasks stand beside environments; move them there")
    return _usable(facts, environment_fault(facts))


def _check_reward(facts: dict[str, Any]) -> dict[str, Any]:
    return _usable(facts, reward_fault(facts))


def _usable(facts: dict[str, Any], fault: str | None) -> dict[str, Any]:
    if fault is not None:
        raise ValueError(fault)
    return facts


RewardFacts = Annotated[dict[str, Any], AfterValidator(_check_reward)]
EnvironmentFacts = Annotated[dict[str, Any], AfterValidator(_check_environment)]


Value = TypeVar("Value")
#: What a worker announces by name.
Announced = Annotated[dict[str, Value], Field(max_length=1_000), _bounded(MAX_NAME)]
#: By the names of packages, and of plug-ins with a word before them.
Versions = Annotated[dict[str, str], Field(max_length=3_000), _bounded(MAX_TEXT)]


class RegisterRequest(Wire):
    """A supervisor introduces itself."""

    name: Name
    host: Name
    incarnation: Name
    device: Device
    max_blocks: Annotated[int, Field(ge=1, le=32)] = Field(
        1, description="blocks of one experiment that it can train at once"
    )
    protocol: int = PROTOCOL_VERSION
    versions: Versions = Field(default_factory=dict)
    datasets: Announced[str] = Field(default_factory=dict, description="data set -> fingerprint")
    rewards: Announced[RewardFacts] = Field(default_factory=dict)
    environments: Announced[EnvironmentFacts] = Field(default_factory=dict)
    tasks: Announced[list[TaskGroup]] = Field(default_factory=dict, description="environment family -> its registry")


class RegisterReply(Wire):
    """What the server told the supervisor."""

    worker_id: str
    heartbeat_seconds: float
    lease_ttl_seconds: float
    server_epoch: str
    protocol: int = PROTOCOL_VERSION


class CheckpointRef(Wire):
    """A committed checkpoint of a run."""

    checkpoint_id: str
    next_round: int
    sha256: str
    size_bytes: int


class AssignedRun(Wire):
    """One run of the assignment: what to train and from where."""

    run_id: str
    arm: str
    arm_index: int
    policy: str
    static_set: dict[str, str] | None
    config: dict[str, Any]
    diff: list[dict[str, Any]] = Field(default_factory=list)
    checkpoint: CheckpointRef | None
    diverged: bool


class RewardRef(Wire):
    """The reward of an arm of the experiment, for cross-evaluation; ``gamma`` is that arm's discount."""

    mode: str
    config: dict[str, Any]
    gamma: float


class Assignment(Wire):
    """What a worker trains of a block, with its lease.

    Attributes:
        beside: further blocks of the experiment that the worker is to train in the same process, each with a lease of
            its own.
    """

    assignment_id: str
    lease: str
    experiment_id: str
    experiment_name: str
    block_id: str
    attempt: int
    replicate: int
    root_seed: int
    rounds: int
    resume_round: int
    placement: Literal["one_per_device", "shared_device"]
    device_index: int
    num_arms: int
    barrier: Literal["round", "none"]
    spec_hash: str
    runs: list[AssignedRun]
    reward_modes: list[RewardRef]
    checkpoint_every_rounds: int
    checkpoint_keep: int
    grace_seconds: float
    barrier_timeout_seconds: float
    beside: list[Assignment] = Field(default_factory=list)


class Refusal(Wire):
    """Why the child refused the assignment (cause config)."""

    field: str
    message: str
    remedy: str = ""


class ReadyRequest(Wire):
    """The child is up on its device, or refused."""

    device_uid: Searched | None = None
    resume_round: Small = 0
    warm_up: dict[str, Any] = Field(default_factory=dict)
    refused: Refusal | None = None


class ReadyReply(Wire):
    """Whether the start barrier is open; if not, ask again."""

    start: bool


class EvaluationProgress(Wire):
    """How far an evaluation is.

    Attributes:
        over: episodes that have ended.
        episodes: all that are played.
        steps: env steps taken of each episode that goes on.
        max_steps: after which an episode is cut.
    """

    over: Integer
    episodes: Integer
    steps: Integer
    max_steps: Integer


class Progress(Wire):
    """How far an assignment is; reported with each heartbeat.

    Attributes:
        inside: the code of the user's that the training process is in, in words; empty when it is in none.
        evaluation: how far an evaluation is that has taken a while; None in no such evaluation.
    """

    assignment_id: Searched
    lease: Searched
    round: Small = 0
    step: Small = 0
    frame_age_seconds: float = 0.0
    inside: Annotated[str, Field(max_length=600)] = ""
    evaluation: EvaluationProgress | None = None


class Health(Wire):
    """Device health as the supervisor sees it."""

    ok: bool = True
    detail: str = ""
    memory_used_bytes: Integer = 0
    utilisation: float | None = None
    temperature_c: float | None = None


class HeartbeatRequest(Wire):
    """Sent by the supervisor every interval, also while idle; ``leaving`` is its last word."""

    incarnation: Name
    state: Literal["starting", "idle", "working", "cleaning", "quarantined", "leaving"]
    progress: list[Progress] = Field(default_factory=list)
    health: Health = Field(default_factory=Health)
    spool_bytes: Integer = 0


class LeaseState(Wire):
    """The server's word on one lease.

    ``desired``: run; pause and cancel (by request), drain (preempted), abort (a peer failed).
    """

    assignment_id: str
    valid: bool
    desired: Literal["run", "pause", "cancel", "drain", "abort"]
    stop_within_seconds: float | None = None


class HeartbeatReply(Wire):
    """What the worker must know now."""

    leases: list[LeaseState]
    drain: bool
    status: str


class RunRound(Wire):
    """Result of one round of one run.

    Attributes:
        first_seq: sequence number of the first of ``metrics`` (they take one each, in order).
        digest: SHA-256 over everything of the round that is deterministic.
        nf: what a null metric was, [name, word].
    """

    run_id: Searched
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    env_steps: Integer
    first_seq: Small
    metrics: dict[MetricName, float | None]
    nf: list[tuple[str, Nonfinite]] = Field(default_factory=list)
    episodes: list[Episode] = Field(default_factory=list)
    eval_episodes: list[Episode] = Field(default_factory=list)
    events: list[TrainingEvent] = Field(default_factory=list)
    diverged: str | None = None


class RoundRequest(Wire):
    """Results of round n of every run of the assignment."""

    runs: list[RunRound]
    update_order: list[int] = Field(default_factory=list)
    seconds: float = 0.0


class RoundReply(Wire):
    """Whether the round is complete for the whole block."""

    complete: bool
    missing: list[str] = Field(default_factory=list)


class BarrierReply(Wire):
    """State of the barrier after a round."""

    state: Literal["complete", "waiting", "aborted"]
    missing: list[str] = Field(default_factory=list)
    resume_round: int | None = None


class Points(Wire):
    """Points of one run within its open round, columns of equal length."""

    run_id: Searched
    first_seq: Annotated[Small, Field(ge=1)]
    names: list[MetricName]
    name_index: list[int]
    step: list[Integer]
    round: list[Small]
    t: list[float]
    value: list[float | None]
    nf: list[tuple[int, Nonfinite]] = Field(default_factory=list)


class PointsRequest(Wire):
    """A batch of points, at most MAX_POINTS in all."""

    series: list[Points]


class PointsReply(Wire):
    """Highest contiguous sequence number stored per run."""

    acknowledged: dict[str, int]


class LogLine(Wire):
    """One line of a child's output."""

    seq: Annotated[Small, Field(ge=1)]
    level: Severity = "info"
    text: str


class LogsRequest(Wire):
    """Log lines of the assignment, in order."""

    lines: list[LogLine] = Field(max_length=2_000)
    dropped: Integer = 0


class CommitRun(Wire):
    """An uploaded checkpoint file that becomes valid."""

    run_id: Searched
    sha256: Searched


class CommitRequest(Wire):
    """Commit the checkpoints of all runs of the assignment before ``next_round`` in one call."""

    next_round: Small
    runs: list[CommitRun]


class ReleaseRequest(Wire):
    """The assignment has ended on the worker."""

    outcome: Literal["completed", "stopped", "error"]
    cause: (
        Literal["preempted", "worker_lost", "oom", "timeout", "bug", "device", "environment", "config", "user"] | None
    ) = None
    pinned_run: Searched | None = Field(None, description="run that alone caused an out-of-memory")
    detail: Annotated[str, Field(max_length=20_000)] = ""
    cleanup: Annotated[str, Field(max_length=2_000)] = "clean"
    seconds: float = 0.0
