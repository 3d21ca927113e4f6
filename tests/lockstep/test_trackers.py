"""Files for trackers, read back by readers of our own; and the library that is needed for one of them."""

from __future__ import annotations

import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from app.cli import people
from lockstep.answers import Curve, MissingPackage
from lockstep.client import Client
from lockstep.trackers import WRITERS, TrackedExperiment, TrackedRun, collect, crc32c
from tests.conftest import LiveServer
from tests.factories import SimulatedWorker, submit


def curve(metric: str, steps: list[int], values: list[float]) -> tuple[Curve, Any]:
    x, y = np.array(steps, dtype=float), np.array(values)
    return Curve("run_1", "A", 0, metric, x, y, y, y, len(steps)), 1000.5 + x


EXPERIMENT = TrackedExperiment(
    "exp_1",
    "two: arms",
    [
        TrackedRun(
            "run_1",
            "A-r0",
            "succeeded",
            {"ppo.lr": 0.1, "env.id": "CartPole-v1"},
            {"arm": "A"},
            [curve("eval/accuracy", [10, 200], [0.5, float("nan")]), curve("train/loss", [10], [float("inf")])],
            1000.5,
        )
    ],
)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of an event file, with their checksums judged."""
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        body, checks = data[12 : 12 + size], (data[8:12], data[12 + size : 16 + size])
        for part, check in zip((data[:8], body), checks, strict=True):
            found = crc32c(part)
            assert struct.unpack("<I", check)[0] == ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
        yield body
        data = data[16 + size :]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of a message in the form of protocol buffers."""
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            yield number, message[at : at + size]
            at += size


def test_checksum_is_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_event_file_of_tensorboard_holds_every_point(tmp_path: Path) -> None:
    WRITERS["tensorboard"](EXPERIMENT, tmp_path)
    [path] = (tmp_path / "exp_1" / "A-r0").glob("events.out.tfevents.*")
    first, *events = [dict(fields(record)) for record in records(path.read_bytes())]
    assert first[3] == b"brain.Event:2"
    found = []
    for event in events:
        [(_, value)] = list(fields(event[5]))
        parts = dict(fields(value))
        [number] = struct.unpack("<f", parts[2])
        found.append((parts[1].decode(), event[2], number, struct.unpack("<d", event[1])[0]))
    assert found[0] == ("eval/accuracy", 10, 0.5, 1010.5)
    assert found[1][:2] == ("eval/accuracy", 200)
    assert np.isnan(found[1][2])
    assert found[2][:3] == ("train/loss", 10, float("inf"))


def test_folders_of_mlflow_hold_runs_with_metrics_params_and_tags(tmp_path: Path) -> None:
    WRITERS["mlflow"](EXPERIMENT, tmp_path)
    [experiment] = [path for path in tmp_path.iterdir() if path.is_dir()]
    about = yaml.safe_load((experiment / "meta.yaml").read_text())
    assert (about["name"], about["experiment_id"]) == ("two: arms (exp_1)", experiment.name)
    [run] = [path for path in experiment.iterdir() if path.is_dir()]
    meta = yaml.safe_load((run / "meta.yaml").read_text())
    assert (meta["run_id"], meta["run_name"], meta["status"]) == (run.name, "A-r0", 3)
    lines = (run / "metrics" / "eval" / "accuracy").read_text().splitlines()
    assert lines == ["1010500 0.5 10", "1200500 nan 200"]
    assert (run / "params" / "ppo.lr").read_text() == "0.1"
    assert (run / "params" / "env.id").read_text() == "CartPole-v1"
    assert (run / "tags" / "mlflow.runName").read_text() == "A-r0"


def test_offline_runs_of_wandb_are_made_by_its_library_or_its_absence_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackage, match="pip install wandb"):
        WRITERS["wandb-offline"](EXPERIMENT, tmp_path)
    told: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda values, step: told.append((step, values)), finish=lambda exit_code: told.append(exit_code)
    )

    def init(**given: Any) -> types.SimpleNamespace:
        told.append(given)
        return run

    library = types.SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "wandb", library)
    WRITERS["wandb-offline"](EXPERIMENT, tmp_path)
    assert (told[0]["mode"], told[0]["group"], told[0]["id"]) == ("offline", "exp_1", "run_1")
    assert [step for step, _ in told[1:-1]] == [10, 200]
    assert told[1][1] == {"eval/accuracy": 0.5, "train/loss": float("inf")}
    assert told[-1] == 0


@pytest.mark.server
def test_command_writes_what_a_tracker_reads(sqlite_server: LiveServer, tmp_path: Path) -> None:
    experiment_id = submit(sqlite_server.ctx)
    worker = SimulatedWorker(sqlite_server.ctx).register()
    worker.claim()
    worker.train(rounds=2)
    with Client(sqlite_server.url) as client:
        found = collect(client, experiment_id)
    assert [run.name for run in found.runs] == ["A-r0", "B-r0"]
    assert found.runs[0].params["ppo.minibatches"] == 2
    assert {each.metric for each, _ in found.runs[0].curves} == {"eval/accuracy", "train/return_mean"}
    assert all(times[0] > 1.7e9 for _, times in found.runs[0].curves)
    environment = {"LOCKSTEP_URL": sqlite_server.url}
    arguments = ["export", experiment_id, "--to", "tensorboard", "--output", str(tmp_path / "tb")]
    result = CliRunner().invoke(people.app, arguments, env=environment)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"2 runs written to {tmp_path / 'tb'}; tensorboard --logdir {tmp_path / 'tb'}\n"
    assert len(list((tmp_path / "tb" / experiment_id).glob("*/events.out.tfevents.*"))) == 2
    wrong = CliRunner().invoke(people.app, ["export", experiment_id, "--to", "aim"], env=environment)
    assert wrong.exit_code == 2
    assert "tensorboard, mlflow, wandb-offline" in " ".join(wrong.stderr.replace("│", " ").split())
