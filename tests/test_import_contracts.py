"""The import rules hold, and each of them can be broken: a violation of every contract is planted."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: contract -> (file of the copy, line that breaks it)
PLANTED = {
    "lockstep-pure": ("lockstep/spec/plan.py", "import torch"),
    "lockstep-layers": ("lockstep/stats/paired.py", "import lockstep.spec.plan"),
    "app-no-torch": ("app/store/records/events.py", "import torch"),
    "worker-no-app": ("worker/supervision/spool.py", "import app.services.artifacts"),
    "layers": ("app/store/records/events.py", "import app.services.artifacts"),
    "people-light": ("app/cli/text.py", "import app.settings"),
    "sqlalchemy": ("lockstep/client.py", "import sqlalchemy"),
    "httpx": ("app/services/artifacts.py", "import httpx"),
    "rl": ("worker/rl/algorithms/ppo.py", "import worker.envs.upload"),
    "envs": ("worker/envs/base.py", "import worker.rl.algorithms.ppo"),
    "morph-wings": ("worker/envs/morph/task/data.py", "import worker.envs.morph.network.hosts"),
    "no-cycles": ("worker/rl/nets.py", "import worker.rl.learner"),
    "gymnasium": ("worker/rl/algorithms/ppo.py", "import gymnasium"),
    "ray": ("app/services/artifacts.py", "import ray"),
    "triton": ("worker/envs/morph/engine/eager.py", "import triton"),
    "supervisor-light": ("worker/supervision/spool.py", "import torch"),
}


def check(root: Path, contract: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--contract", contract]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in ("lockstep", "app", "worker"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", root)
    return root


def test_every_contract_has_a_planted_violation() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    contracts = {name.rpartition(":")[2] for name in config.sections() if ":contract:" in name}
    assert contracts == set(PLANTED)


@pytest.mark.parametrize("contract", list(PLANTED))
def test_contract_holds_and_a_planted_violation_breaks_it(copy: Path, contract: str) -> None:
    file, line = PLANTED[contract]
    assert check(copy, contract).returncode == 0
    path = copy / file
    before = path.read_text()
    path.write_text(
        before.replace("from __future__ import annotations\n", f"from __future__ import annotations\n{line}\n")
    )
    try:
        broken = check(copy, contract)
    finally:
        path.write_text(before)
    assert broken.returncode == 1, broken.stdout
    assert "BROKEN" in broken.stdout
