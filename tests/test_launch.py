"""``lockstep launch``: workers are started, started again, and drained, by whatever engine starts them.

The engines are stood in for by small programs of their names; what they are handed is run as they would run it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import launch
from app.cli.keeping import Fleet
from app.settings import Settings
from lockstep.client import Client
from tests.conftest import LiveServer, wait_until

TOKEN = "lsk_s3cret"
#: Stands for an interpreter that has the worker: notes how it was called, and drains on SIGTERM. It ends with whoever
#: started it, and after two minutes: a test that is killed leaves nothing behind.
WORKER = """#!/bin/bash
trap 'echo drain >> {log}; exit 0' TERM
echo "start $*" >> {log}
[ -n "$LOCKSTEP_TOKEN" ] && echo "token $LOCKSTEP_TOKEN" >> {log}
if rm {log}.die 2>/dev/null; then exit 1; fi
while kill -0 $PPID 2>/dev/null && ((SECONDS < 120)); do sleep 0.02; done
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the workers note."""
    program(tmp_path / "python", WORKER.format(log=tmp_path / "log"))
    (tmp_path / "log").touch()
    return tmp_path / "log"


Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def started(log: Path) -> Any:
    """Starts the command in the background, its programs first on the path; ends what is left of it."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        given = {
            **os.environ,
            "PATH": f"{log.parent}:{os.environ['PATH']}",
            "LOCKSTEP_URL": "http://lab",
            **environment,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli.launch", *words, "--python", str(log.parent / "python")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=given,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def count(log: Path, word: str) -> int:
    return sum(line.startswith(word) for line in log.read_text(encoding="utf-8").splitlines())


def test_local_starts_workers_restarts_one_that_dies_and_drains_all(log: Path, started: Launch) -> None:
    Path(f"{log}.die").touch()
    process = started("local", "3", "--device", "cpu")
    wait_until(lambda: count(log, "start -m worker --api http://lab --device cpu") == 4, timeout=60, what="four starts")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert count(log, "drain") == 3
    assert process.stdout is not None
    assert "ended with code 1; it is started again" in process.stdout.read()


def test_who_asks_twice_for_the_end_of_workers_gets_the_same_one(tmp_path: Path) -> None:
    fleet = Fleet([["sh", "-c", f"echo start >> {tmp_path}/log; sleep 0.3; exit 3"]])
    with ThreadPoolExecutor(2) as threads:
        assert [end.result(timeout=20) for end in [threads.submit(fleet.wait) for _ in range(2)]] == [3, 3]
    assert count(tmp_path / "log", "start") == 1


@pytest.mark.server
def test_local_that_is_killed_leaves_no_worker(sqlite_server: LiveServer, tmp_path: Path) -> None:
    light = program(
        tmp_path / "python",
        f'#!/bin/bash\nexec {sys.executable} -m tests.field.light_worker "${{@:3}}" --trainer-cmd none\n',
    )
    environment = {"LOCKSTEP_LOCK_DIR": str(tmp_path / "locks"), "LOCKSTEP_SPOOL_DIR": str(tmp_path / "work")}
    command = [sys.executable, "-m", "app.cli.launch", "local", "2", "--device", "cpu", "--api", sqlite_server.url]
    process = subprocess.Popen(
        [*command, "--python", str(light)], stdout=subprocess.PIPE, env={**os.environ, **environment}
    )
    with Client(sqlite_server.url) as client, process:
        wait_until(lambda: [w["status"] for w in client.workers()] == ["idle", "idle"], timeout=60, what="two workers")
        process.kill()
        wait_until(
            lambda: [w["status"] for w in client.workers(retired=True)] == ["retired", "retired"],
            timeout=60,
            what="two goodbyes",
        )


def test_ssh_hands_over_the_token_restarts_and_drains_when_the_line_is_cut(log: Path, started: Launch) -> None:
    program(
        log.parent / "ssh",
        f'#!/bin/bash\necho "ssh $*" >> {log}\nexec sh -c "${{@: -1}}"\n',
    )
    Path(f"{log}.die").touch()
    process = started("ssh", "node1", "node2", LOCKSTEP_TOKEN=TOKEN)
    wait_until(lambda: count(log, "token") == 3, timeout=60, what="two workers, one of them for the second time")
    calls = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("ssh ")]
    assert {line.split()[5] for line in calls} == {"node1", "node2"}
    assert not any(TOKEN in line for line in calls)
    assert f"token {TOKEN}" in log.read_text(encoding="utf-8")
    process.kill()  # no chance to say anything: the input of ssh ends
    wait_until(lambda: count(log, "drain") == 2, timeout=60, what="two drained workers")


def test_what_cannot_be_started_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = CliRunner().invoke(launch.app, ["local", "2", "--python", str(tmp_path / "python")])
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (3, 1)
    assert f"--python: there is no program {tmp_path / 'python'} here" in refused.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = CliRunner().invoke(launch.app, ["ssh", "node1"])
    assert (refused.exit_code, "there is no ssh here" in refused.stderr) == (3, True)


def sbatch(log: Path, *words: str) -> str:
    """Return the script that is handed to sbatch."""
    given = ["slurm", *words, "--token-file", "/shared/my token", "--python", str(log.parent / "python")]
    result = CliRunner().invoke(launch.app, given, env={"LOCKSTEP_URL": "http://lab:7480"})
    assert result.exit_code == 0, result.stderr
    return result.stdout


def run_as_slurm(log: Path, script: str) -> subprocess.Popen[bytes]:
    """Run one element of an array as Slurm runs it, with programs in the place of Slurm's."""
    program(log.parent / "srun", '#!/bin/bash\nshift\nexec "$@"\n')
    program(log.parent / "scontrol", f'#!/bin/bash\necho "scontrol $*" >> {log}\n')
    path = program(log.parent / "script", script)
    environment = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    given = {**os.environ, "PATH": f"{log.parent}:{os.environ['PATH']}", **environment}
    process = subprocess.Popen(["bash", str(path)], env=given)
    wait_until(lambda: count(log, "start") == 1, timeout=60, what="a worker")
    return process


def test_slurm_drains_before_the_limit_and_queues_again(log: Path) -> None:
    script = sbatch(log, "8", "--time", "02:00:00", "--partition", "gpu", "--drain-seconds", "300")
    options = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert {"--array=0-7", "--requeue", "--signal=B:USR1@300", "--gpus-per-task=1", "--partition=gpu"} <= set(options)
    process = run_as_slurm(log, script)
    said = log.read_text(encoding="utf-8")
    assert "--token-file /shared/my token --device gpu --name lockstep-17-3" in said
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=60) == 0
    assert count(log, "drain") == 1
    assert count(log, "scontrol requeue 17_3") == 1


def test_slurm_drains_when_it_is_cancelled_and_does_not_queue_again(log: Path) -> None:
    process = run_as_slurm(log, sbatch(log, "1", "--gpus", "0"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert (count(log, "drain"), count(log, "scontrol")) == (1, 0)


def test_slurm_submits_by_sbatch_and_says_where_there_is_none(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["slurm", "2", "--token-file", "/t", "--submit"]
    monkeypatch.setenv("PATH", str(log.parent))
    refused = CliRunner().invoke(launch.app, words)
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (3, 1)
    assert "there is no sbatch here" in refused.stderr
    program(log.parent / "sbatch", f"#!/bin/sh\n/bin/cat > {log}\n")
    assert CliRunner().invoke(launch.app, words).exit_code == 0
    assert log.read_text(encoding="utf-8").startswith("#!/bin/bash\n#SBATCH --job-name=lockstep-worker\n")


def test_ray_that_is_not_installed_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "app.cli.on_ray", raising=False)
    refused = CliRunner().invoke(launch.app, ["ray", "2"])
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert "needs Ray, which is not installed here: pip install 'lockstep[worker,ray]' on each node" in refused.stderr


def manifests(*words: str) -> dict[tuple[str, str], dict[str, Any]]:
    given = ["k8s", "--image", "lab/api:1", "--worker-image", "lab/worker:1", *words]
    result = CliRunner().invoke(launch.app, given)
    assert result.exit_code == 0, result.stderr
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(result.stdout)}


#: Fields that the objects used here may have (Kubernetes 1.30), by the kind or the place they stand at.
FIELDS: Mapping[str, set[str]] = {
    "document": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name", "namespace", "labels"},
    "Service": {"selector", "ports"},
    "PersistentVolumeClaim": {"accessModes", "resources"},
    "Deployment": {"replicas", "strategy", "selector", "template"},
    "HorizontalPodAutoscaler": {"scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "behavior"},
    "pod": {
        "enableServiceLinks",
        "terminationGracePeriodSeconds",
        "securityContext",
        "initContainers",
        "containers",
        "volumes",
    },
    "container": {
        "name",
        "image",
        "args",
        "command",
        "env",
        "ports",
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
        "resources",
        "volumeMounts",
    },
    "probe": {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"},
}


def test_k8s_manifests_hold_together() -> None:
    found = manifests("--host", "lab.example", "--most", "8", "--namespace", "lab")
    assert set(found) == {
        ("Service", "lockstep-api"),
        ("PersistentVolumeClaim", "lockstep-files"),
        ("Deployment", "lockstep-api"),
        ("Deployment", "lockstep-worker"),
        ("HorizontalPodAutoscaler", "lockstep-worker"),
    }
    for (kind, _), item in found.items():
        assert set(item) <= FIELDS["document"]
        assert set(item["metadata"]) <= FIELDS["metadata"]
        assert item["metadata"]["namespace"] == "lab"
        assert set(item["spec"]) <= FIELDS[kind]
    for item in (found["Deployment", "lockstep-api"], found["Deployment", "lockstep-worker"]):
        _check_deployment(item["spec"])
    assert "replicas" not in found["Deployment", "lockstep-worker"]["spec"]  # the scaler's
    scaled = found["HorizontalPodAutoscaler", "lockstep-worker"]["spec"]
    assert (scaled["scaleTargetRef"]["name"], scaled["minReplicas"], scaled["maxReplicas"]) == ("lockstep-worker", 1, 8)
    [expression] = scaled["metrics"][0]["external"]["metric"]["selector"]["matchExpressions"]
    assert {"queued", "running"} <= set(expression["values"])  # who trains is not taken away when nothing waits
    [worker] = found["Deployment", "lockstep-worker"]["spec"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "http://lockstep-api" in worker["args"]


def test_k8s_refuses_a_scale_that_ends_before_it_begins() -> None:
    words = ["k8s", "--image", "a", "--worker-image", "w", "--workers", "5", "--most", "3"]
    refused = CliRunner().invoke(launch.app, words)
    assert refused.exit_code == 2
    assert refused.stderr == "error: --most 3: with --workers 5 as the fewest, give at least 5\n"


def _check_deployment(spec: Mapping[str, Any]) -> None:
    pod = spec["template"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert set(pod) <= FIELDS["pod"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        assert set(container) <= FIELDS["container"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if name in container:
                assert set(container[name]) <= FIELDS["probe"]
                assert container[name]["httpGet"]["port"] in [port["containerPort"] for port in container["ports"]]
        for entry in container["env"]:
            assert isinstance(entry.get("value", ""), str)  # a number is refused
            assert ("value" in entry) != ("valueFrom" in entry)


def test_k8s_settings_are_settings_of_the_server() -> None:
    [container] = manifests("--host", "lab.example")["Deployment", "lockstep-api"]["spec"]["template"]["spec"][
        "containers"
    ]
    given = {entry["name"]: entry.get("value", "sqlite:////data/x.db") for entry in container["env"]}
    fields = {f"LOCKSTEP_{name}".upper() for name in Settings.model_fields}
    assert set(given) <= fields
    made = Settings(**{name.removeprefix("LOCKSTEP_").lower(): value for name, value in given.items()})
    assert made.allowed_hosts == ("lockstep-api", "lab.example")
    assert made.host_warning is None


def test_what_is_printed_can_be_quoted_anyhow() -> None:
    script = launch._SBATCH.format(options="", worker=shlex.join(["a b", "$(c)", "'"]))
    assert "srun --ntasks=1 'a b' '$(c)' ''\"'\"'' --name" in script
