"""Field lessons L21 to L25: devices by identity, memory, health. NVML's answers are injected."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace
from typing import Any

import httpx
import pynvml
import pytest

from app.errors import ConflictError
from app.services.context import Context
from app.services.experiments import reading
from app.services.training import assignments, sweeping, workers
from lockstep import protocol as p
from lockstep.client import Client
from tests.conftest import Clock, LiveServer, wait_until
from tests.factories import SimulatedWorker, submit, tiny_spec
from tests.field.conftest import StartLight
from worker import capabilities
from worker.supervision import devices

GPU = p.Device(uid="GPU-1", kind="gpu", device_class="H", model="H", memory_bytes=2**36)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An NVML whose numbers the test sets."""
    state = SimpleNamespace(used=2**30, error=None)

    def rates(_handle: Any) -> Any:
        if state.error is not None:
            raise state.error
        return SimpleNamespace(gpu=3)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uid: uid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(used=state.used))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda *_: 40)
    monkeypatch.setattr(devices, "_CHECK_SECONDS", 0.0)
    return state


def beat_with(worker: SimulatedWorker, health: p.Health) -> None:
    state: Any = "idle" if health.ok else "quarantined"
    beat = p.HeartbeatRequest(incarnation=worker.incarnation, state=state, health=health)
    workers.heartbeat(worker.ctx, worker.worker_id, beat)


def test_l21_memory_not_given_back_quarantines_with_the_numbers(ctx: Context, nvml: SimpleNamespace) -> None:
    submit(ctx, tiny_spec(lockstep={"placement": "shared_device"}))
    monitor = devices.GpuMonitor(GPU)
    worker = SimulatedWorker(ctx, kind="gpu", device_class="H").register()
    worker.claim()
    nvml.used += 199 * 2**20
    assert monitor.check_free().ok
    nvml.used += 2 * 2**20
    worker.release("error", "bug")
    beat_with(worker, monitor.check_free())
    shown = reading.show_worker(ctx, worker.worker_id)
    assert shown["status"] == "quarantined"
    assert "1225 MiB in use after the block, 1024 MiB before any" in shown["status_text"]


@pytest.mark.gpu
def test_l21_memory_of_a_real_gpu_is_free_after_a_block() -> None:
    found = devices.discover_gpus()
    bound = devices.bind(found[0]["uid"], host="h", threads=1)
    monitor = devices.GpuMonitor(bound.device)
    assert monitor.check_free().ok
    bound.lock.release()


@pytest.mark.server
def test_l22_discovery_asks_the_runtime_and_never_splits_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,0")  # CUDA's own rules: none is visible
    assert devices.discover_gpus() == []
    source = Path(devices.__file__).read_text() + Path(capabilities.__file__).read_text()
    assert 'environ["CUDA_VISIBLE_DEVICES"]' not in source
    assert 'environ.get("CUDA_VISIBLE_DEVICES"' not in source


def test_l23_device_is_bound_by_uuid_in_pci_order_and_the_child_must_see_it(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("LOCKSTEP_LOCK_DIR", str(tmp_path))
    gpu = {"uid": "MIG-7", "model": "H", "memory_bytes": 2**36, "capability": "90"}
    monkeypatch.setattr(devices, "discover_gpus", lambda: [gpu])
    bound = devices.bind("MIG-7", host="h", threads=1)
    assert bound.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-7"}
    bound.lock.release()
    experiment_id = submit(ctx)
    worker = SimulatedWorker(ctx).register()
    worker.claim()
    other = p.ReadyRequest(device_uid="GPU-other")
    with pytest.raises(ConflictError) as refused:
        assignments.ready(ctx, worker.held.assignment_id, worker.held.lease, other)
    assert refused.value.code == "device_mismatch"
    assert reading.show_worker(ctx, worker.worker_id)["status"] == "quarantined"
    sweeping.sweep(ctx)
    assert reading.list_blocks(ctx, experiment_id)[0]["status"] == "queued"


@pytest.mark.server
def test_l24_child_inherits_no_device_variable_or_secret_and_a_device_has_one_worker(
    sqlite_server: LiveServer, light_worker: StartLight
) -> None:
    with Client(sqlite_server.url) as client:
        experiment_id = client.submit(tiny_spec(budget={"rounds": 1}))["id"]
        canaries = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "AWS_SECRET_ACCESS_KEY": "canary", "LOCKSTEP_TOKEN": "canary"}
        worker = light_worker(sqlite_server.url, "environment", device="cpu:fieldhost:0", **canaries)
        wait_until(lambda: client.runs(experiment_id)[0]["status"] == "succeeded", timeout=120, what="the end")
        run_id = client.runs(experiment_id)[0]["id"]
        lines = client.call("GET", f"runs/{run_id}/logs")["items"]
        seen = json.loads(next(line["text"] for line in lines if line["text"].startswith("{")))
        assert seen["CUDA_VISIBLE_DEVICES"] == ""
        assert not {"AWS_SECRET_ACCESS_KEY", "LOCKSTEP_TOKEN"} & set(seen)
        second = light_worker(sqlite_server.url, device="cpu:fieldhost:0")
        assert second.process.wait(timeout=60) == 3
        assert "cpu:fieldhost:0 is held by a worker on this host" in second.log.read_text()
        request = {"name": "two", "host": "fieldhost", "incarnation": "x", "device": GPU.model_dump()}
        request["device"] = {**GPU.model_dump(), "uid": "cpu:fieldhost:0", "kind": "cpu"}
        answer = httpx.post(f"{sqlite_server.url}/api/v1/workers", json=request)
        assert (answer.status_code, answer.json()["code"]) == (409, "device_in_use")
        assert "device cpu:fieldhost:0 is in use by worker " in answer.json()["detail"]
        assert "where two hosts have one name, give each its own with --host" in answer.json()["detail"]
        request["device"] = {**GPU.model_dump(), "uid": "0", "kind": "cpu"}
        answer = httpx.post(f"{sqlite_server.url}/api/v1/workers", json=request)
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert "uid '0' is no identity of a cpu" in error["message"]
        assert error["remedy"].startswith("name a GPU GPU-<uuid> or MIG-<uuid> and a CPU slot cpu:<host>:<n>")
        os.kill(worker.process.pid, signal.SIGTERM)


def test_l25_lost_gpu_is_quarantined_and_the_block_moves_on_without_spending_its_budget(
    ctx: Context, clock: Clock, nvml: SimpleNamespace
) -> None:
    experiment_id = submit(ctx)
    monitor = devices.GpuMonitor(GPU)
    worker = SimulatedWorker(ctx, kind="gpu", device_class="H").register()
    sweeping.sweep(ctx)
    worker.claim()
    nvml.error = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    held = worker.held
    request = p.ReleaseRequest(outcome="error", cause="bug", detail="CUDA error")
    assignments.release(ctx, held.assignment_id, held.lease, request)
    beat_with(worker, monitor.check_free())
    shown = reading.show_worker(ctx, worker.worker_id)
    assert shown["status"] == "quarantined"
    assert "NVML" in shown["status_text"]
    clock.advance(1.0)
    healthy = SimulatedWorker(ctx, "healthy").register()
    assert healthy.claim() is not None
    healthy.ready()
    healthy.release("error", "bug", detail="a bug of its own")
    assert reading.list_blocks(ctx, experiment_id)[0]["status"] == "queued", "the lost device spent the budget"
