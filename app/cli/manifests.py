"""Kubernetes manifests of a server and its workers, as data: no template language, so nothing can be misquoted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.status import BlockStatus

PORT = 7480
#: A worker may take so long to reach its round border, store its checkpoint and leave.
DRAIN_SECONDS = 180
#: User and group of the images (Dockerfile).
_USER = 10_001
#: States of a block for which there should be a worker.
IN_WORK = (BlockStatus.QUEUED, BlockStatus.RESERVED, BlockStatus.RUNNING, BlockStatus.STOPPING)
Document = dict[str, Any]


def manifests(
    *,
    image: str,
    worker_image: str,
    hosts: Sequence[str],
    replicas: int,
    workers: int,
    most: int | None,
    gpus: int,
    namespace: str,
) -> str:
    """Return the documents as YAML.

    Args:
        image: of the server.
        worker_image: of a worker.
        hosts: names by which the server is called from outside.
        replicas: API processes.
        workers: how many, or how few where their number follows the queue.
        most: how many at most; None: their number is fixed.
        gpus: of each worker, 0 or 1.
        namespace: where everything goes.
    """
    import yaml

    documents = [
        _service(),
        _files(),
        _api(image, replicas, hosts),
        _workers(worker_image, workers if most is None else None, gpus),
        *([_scaler(max(1, workers), most)] if most is not None else []),
    ]
    for document in documents:
        document["metadata"]["namespace"] = namespace
    return str(yaml.safe_dump_all(documents, sort_keys=False))


def _named(kind: str, version: str, name: str, **rest: Any) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {"app": name}}, **rest}


def _service() -> Document:
    # not "lockstep": Kubernetes would set LOCKSTEP_PORT=tcp://.. in every pod of the namespace
    spec = {"selector": {"app": "lockstep-api"}, "ports": [{"name": "http", "port": 80, "targetPort": PORT}]}
    return _named("Service", "v1", "lockstep-api", spec=spec)


def _files() -> Document:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}}
    return _named("PersistentVolumeClaim", "v1", "lockstep-files", spec=spec)


def _api(image: str, replicas: int, hosts: Sequence[str]) -> Document:
    environment = [
        _secret("LOCKSTEP_DATABASE_URL", "lockstep-database", "url"),
        {"name": "LOCKSTEP_AUTH", "value": "token"},
        {"name": "LOCKSTEP_BIND", "value": "0.0.0.0"},  # noqa: S104 - inside of a pod
        {"name": "LOCKSTEP_PORT", "value": str(PORT)},
        {"name": "LOCKSTEP_DATA_DIR", "value": "/data"},
        {"name": "LOCKSTEP_ALLOWED_HOSTS", "value": ",".join(["lockstep-api", *hosts])},
    ]
    mounts = [{"name": "files", "mountPath": "/data"}]
    container = {
        "name": "api",
        "image": image,
        "env": environment,
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": _probe("/healthz", period=2, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=3),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": mounts,
    }
    migration = {
        "name": "migrate",  # several at once take turns
        "image": image,
        "command": ["lockstep", "db", "upgrade"],
        "env": environment,
        "volumeMounts": mounts,
    }
    pod = {
        **_pod(grace=15),
        "initContainers": [migration],
        "containers": [container],
        "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": "lockstep-files"}}],
    }
    spec = {
        "replicas": replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    return _deployment("lockstep-api", spec, pod)


def _workers(image: str, workers: int | None, gpus: int) -> Document:
    limits: dict[str, Any] = {"memory": "8Gi", **({"nvidia.com/gpu": gpus} if gpus else {})}
    container = {
        "name": "worker",
        "image": image,
        "args": ["--api", "http://lockstep-api", "--device", "gpu" if gpus else "cpu"],
        "env": [_secret("LOCKSTEP_TOKEN", "lockstep-worker", "token"), _pod_name("LOCKSTEP_HOST_NAME")],
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": limits},
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shared", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    pod = {
        **_pod(grace=DRAIN_SECONDS),
        "containers": [container],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "shared", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }
    spec: Document = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}}}
    if workers is not None:
        spec["replicas"] = workers
    return _deployment("lockstep-worker", spec, pod)


def _scaler(fewest: int, most: int) -> Document:
    """Follow the queue, by a metric that an adapter takes from /metrics: one worker for each block in work.

    What is trained counts beside what waits: else the workers would be taken away once all have a block.
    """
    in_work = {"key": "status", "operator": "In", "values": [status.value for status in IN_WORK]}
    metric = {"name": "lockstep_blocks", "selector": {"matchExpressions": [in_work]}}
    source = {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "lockstep-worker"}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": fewest,
        "maxReplicas": most,
        "metrics": [{"type": "External", "external": source}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    }
    return _named("HorizontalPodAutoscaler", "autoscaling/v2", "lockstep-worker", spec=spec)


def _deployment(name: str, spec: Document, pod: Document) -> Document:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return _named(
        "Deployment", "apps/v1", name, spec={**spec, "selector": {"matchLabels": labels}, "template": template}
    )


def _pod(*, grace: int) -> Document:
    return {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "fsGroup": _USER},
    }


def _probe(path: str, *, period: int, failures: int) -> Document:
    asked = {"path": path, "port": PORT}
    return {"httpGet": asked, "periodSeconds": period, "timeoutSeconds": 4, "failureThreshold": failures}


def _secret(name: str, secret: str, key: str) -> Document:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _pod_name(name: str) -> Document:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
