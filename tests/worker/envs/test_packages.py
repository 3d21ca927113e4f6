"""Tasks of packages that register with Gymnasium when they are asked to: a real distribution on the path."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from lockstep import plugins
from worker.envs.gymnasium import build
from worker.envs.gymnasium.build import build_one
from worker.envs.gymnasium.catalog import tasks
from worker.envs.gymnasium.stepping.env import make_envs

_REGISTERS = """
import gymnasium

def register():
    gymnasium.register("Faraway/Cart-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
"""
#: Of the packages that tests here install.
_NAMESPACES = {"Faraway", "Unlicensed", "Bad"}
_RAISES = "def register():\n    raise RuntimeError('no licence')\n"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder whose distributions are installed; what they register is forgotten, and nothing else.

    A package that registers when it is imported does so once in a process: its tasks would be lost to later tests.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    for name in [name for name, spec in gymnasium.registry.items() if spec.namespace in _NAMESPACES]:
        del gymnasium.registry[name]


def _install(folder: Path, namespace: str, text: str) -> None:
    module = f"lockstep_test_{namespace.lower()}"
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gymnasium.envs]\n{namespace} = {module}:register\n")


def test_a_task_is_registered_by_the_package_of_its_namespace(packages: Path) -> None:
    _install(packages, "Faraway", _REGISTERS)
    env = build_one({"id": "Faraway/Cart-v0"})
    assert env.spec is not None
    assert env.spec.max_episode_steps == 9


def test_a_package_that_raises_is_named_with_its_reason_and_costs_no_other_task(packages: Path) -> None:
    _install(packages, "Unlicensed", _RAISES)
    assert build_one({"id": "CartPole-v1"}).spec is not None
    with pytest.raises(ValueError, match=r"Unlicensed/Cart-v0.*no licence"):
        build_one({"id": "Unlicensed/Cart-v0"})


def test_who_has_a_task_is_looked_up_once_for_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def counted(**named: Any) -> Any:
        asked.append(named)
        return entry_points(**named)

    monkeypatch.setattr(build, "entry_points", counted)
    monkeypatch.setattr(plugins, "entry_points", counted)
    section = {"id": "CartPole-v1", "rollout_steps": 4}
    envs = make_envs({"env": section}, [None] * 2, replicate_seed=5, num_envs=4, phase="train")
    envs.close()
    assert asked == [{"group": build.ENTRY_POINTS, "name": "CartPole-v1"}]


def test_the_catalogue_holds_tasks_of_packages_and_survives_a_bad_one(
    packages: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _install(packages, "Faraway", _REGISTERS)
    _install(packages, "Bad", _RAISES)
    assert any("Faraway/Cart-v0" in group["ids"] for group in tasks())
    assert "tasks of 'Bad' are not known here" in capfd.readouterr().err
