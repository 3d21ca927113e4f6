"""Runs of an experiment for other people's trackers: TensorBoard, MLflow and Weights & Biases.

TensorBoard's event files and MLflow's folders are written here, with neither installed. The offline format of Weights &
Biases is its own library's alone, which is needed for it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.answers import Curve, MissingPackage

if TYPE_CHECKING:
    from lockstep.answers import FloatArray
    from lockstep.client import Client

_METRICS_A_CALL, _MAX_POINTS = 50, 2000
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
_FINISHED, _FAILED, _KILLED = 3, 4, 5
_MLFLOW_STATUS = {"succeeded": _FINISHED, "failed": _FAILED, "cancelled": _KILLED}


@dataclass(frozen=True)
class TrackedRun:
    """One run as a tracker knows it.

    Attributes:
        id: of the run.
        name: ``ARM-rREPLICATE``.
        status: its state here.
        params: settings of its arm, flat: {``ppo.lr``: 0.0003}.
        tags: experiment, arm, replicate and reward mode.
        curves: its metrics over environment steps, each with the times of its points, seconds since 1970.
        started: seconds since 1970.
    """

    id: str
    name: str
    status: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    curves: Sequence[tuple[Curve, FloatArray]]
    started: float


@dataclass(frozen=True)
class TrackedExperiment:
    """An experiment as a tracker knows it."""

    id: str
    name: str
    runs: Sequence[TrackedRun]


def collect(client: Client, experiment_id: str) -> TrackedExperiment:
    """Return what is recorded of an experiment; long curves in 2,000 buckets, a point the mean of each."""
    shown = client.show(experiment_id)
    arms = {arm["label"]: arm for arm in shown["arms"]}
    shared = {key: value for key, value in shown["spec"].items() if key != "arms"}
    runs = []
    for run in client.runs(experiment_id):
        differs = {item["path"]: item["value"] for item in arms[run.arm]["diff"]}
        tags = {"experiment": shown.name, "arm": run.arm, "replicate": str(run.replicate), "reward": run["reward_mode"]}
        curves = list(_curves(client, experiment_id, run.id))
        started = min((float(times[0]) for _, times in curves if times.size), default=0.0)
        params = {**flat(shared), **differs}
        name = f"{run.arm}-r{run.replicate}"
        runs.append(TrackedRun(run.id, name, run.status, params, tags, curves, started))
    return TrackedExperiment(shown.id, shown.name, runs)


def _curves(client: Client, experiment_id: str, run_id: str) -> Iterator[tuple[Curve, FloatArray]]:
    """Yield every metric of a run over steps, with the times of its points."""
    names = client.call("GET", f"runs/{run_id}")["metrics"]
    for first in range(0, len(names), _METRICS_A_CALL):
        some = names[first : first + _METRICS_A_CALL]
        found = [
            client.series(experiment_id, some, runs=[run_id], x=x, max_points=_MAX_POINTS) for x in ("step", "time")
        ]
        for by_step, by_time in zip(*found, strict=True):
            yield by_step, by_time.x


def flat(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Return nested settings as one level of dotted names."""
    scalars: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{at}.{key}" if at else str(key)
        scalars |= flat(value, name) if isinstance(value, Mapping) else {name: value}
    return scalars


def write_tensorboard(experiment: TrackedExperiment, folder: Path) -> None:
    """Write an event file a run: ``tensorboard --logdir FOLDER`` shows them, a line a run."""
    for run in experiment.runs:
        place = folder / experiment.id / run.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "params.json").write_text(json.dumps(dict(run.params), indent=2), encoding="utf-8")
        name = f"events.out.tfevents.{int(run.started)}.lockstep.{run.id}"
        with (place / name).open("wb") as file:
            file.write(_record(_event(run.started, 0, version="brain.Event:2")))
            for curve, times in run.curves:
                for time, x, value in zip(times, curve.x, curve.mean, strict=True):
                    file.write(_record(_event(float(time), int(x), scalar=(curve.metric, float(value)))))


def _record(data: bytes) -> bytes:
    """Return a record of the file: length and data, each with its masked checksum."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", _masked(head)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _entry(index: int) -> int:
    for _ in range(8):
        index = (index >> 1) ^ (_POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = tuple(_entry(index) for index in range(256))


def _event(time: float, step: int, *, version: str | None = None, scalar: tuple[str, float] | None = None) -> bytes:
    """Return a TensorFlow ``Event`` in the form of protocol buffers: time, step, and a version or one value."""
    event = b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(step)
    if version is not None:
        event += _sized(0x1A, version.encode())
    if scalar is not None:
        value = _sized(0x0A, scalar[0].encode()) + b"\x15" + struct.pack("<f", scalar[1])
        event += _sized(0x2A, _sized(0x0A, value))
    return event


def _sized(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def write_mlflow(experiment: TrackedExperiment, folder: Path) -> None:
    """Write folders as MLflow's file store has them, which ``mlflow migrate-filestore`` reads into a database."""
    number = str(int(_digest(experiment.id)[:15], 16))
    place = folder.absolute() / number
    place.mkdir(parents=True, exist_ok=True)
    times = [int(1000 * run.started) for run in experiment.runs] or [0]
    about = {"artifact_location": place.as_uri(), "creation_time": min(times), "experiment_id": number}
    more = {"last_update_time": max(times), "lifecycle_stage": "active", "name": f"{experiment.name} ({experiment.id})"}
    _write_yaml(place / "meta.yaml", {**about, **more})
    for run in experiment.runs:
        _write_mlflow_run(run, number, place / _digest(run.id))


def _write_mlflow_run(run: TrackedRun, number: str, place: Path) -> None:
    millis, name = int(1000 * run.started), place.name
    for part in ("artifacts", "metrics", "params", "tags"):
        (place / part).mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"artifact_uri": (place / "artifacts").as_uri(), "end_time": millis, "entry_point_name": ""}
    about |= {"experiment_id": number, "lifecycle_stage": "active", "run_id": name, "run_name": run.name}
    about |= {"run_uuid": name, "source_name": "", "source_type": 4, "source_version": "", "start_time": millis}
    about |= {"status": _MLFLOW_STATUS.get(run.status, 1), "tags": [], "user_id": "lockstep"}
    _write_yaml(place / "meta.yaml", about)
    for key, value in run.params.items():
        (place / "params" / key).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    for key, text in {**run.tags, "mlflow.runName": run.name}.items():
        (place / "tags" / key).write_text(text, encoding="utf-8")
    for curve, times in run.curves:
        path = place / "metrics" / curve.metric
        path.parent.mkdir(parents=True, exist_ok=True)
        points = zip(times, curve.x, curve.mean, strict=True)
        lines = (f"{int(1000 * time)} {float(value)!r} {int(x)}\n" for time, x, value in points)
        path.write_text("".join(lines), encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    # JSON is YAML, and keeps '1' a text
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()), encoding="utf-8")


def write_wandb(experiment: TrackedExperiment, folder: Path) -> None:
    """Write offline runs of Weights & Biases: ``wandb sync FOLDER/wandb/offline-run-*`` sends them.

    Raises:
        MissingPackage: wandb is not installed.
    """
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError:
        raise MissingPackage("--to wandb-offline needs wandb, which is not installed here: pip install wandb") from None
    folder.mkdir(parents=True, exist_ok=True)
    for run in experiment.runs:
        made = wandb.init(
            mode="offline",
            dir=str(folder),
            project="lockstep",
            group=experiment.id,
            name=run.name,
            id=run.id,
            config=dict(run.params),
            tags=[f"{key}:{text}"[:64] for key, text in run.tags.items()],
        )
        for step, values in _by_step(curve for curve, _ in run.curves):
            made.log(values, step=step)
        made.finish(exit_code=0 if run.status == "succeeded" else 1)


def _by_step(curves: Iterable[Curve]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the values of each step in order: this tracker takes no earlier step after a later one."""
    values: dict[int, dict[str, float]] = {}
    for curve in curves:
        for x, value in zip(curve.x, curve.mean, strict=True):
            values.setdefault(int(x), {})[curve.metric] = float(value)
    yield from sorted(values.items())


#: How each tracker shows them.
SHOWN: Mapping[str, str] = {
    "tensorboard": "tensorboard --logdir {folder}",
    "mlflow": "mlflow migrate-filestore --source {folder} --target sqlite:///mlflow.db",
    "wandb-offline": "wandb sync {folder}/wandb/offline-run-*",
}
#: How each tracker's files are written, by the name of ``--to``.
WRITERS: Mapping[str, Callable[[TrackedExperiment, Path], None]] = {
    "tensorboard": write_tensorboard,
    "mlflow": write_mlflow,
    "wandb-offline": write_wandb,
}
