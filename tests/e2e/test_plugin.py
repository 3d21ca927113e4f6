"""The example package, installed beside a real worker: what it registers is announced, checked and trained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lockstep.client import ApiError, Client
from lockstep.spec.presets import merge
from tests.conftest import LiveServer, WorkerProcess, wait_until
from tests.e2e.following import follow
from tests.factories import cartpole_spec

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "plugin"
#: A file that a page shows: `my-reward/NAME`, and the block below it.
SHOWN = re.compile(
    r"^`my-reward/([\w.]+)`[^`]*?(?:\[[^\]]*\]\([^)]*\)[^`]*?)?```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example package, the one of docs/extending.md and a defective one are installed."""
    target = tmp_path_factory.mktemp("site")
    folder = tmp_path_factory.mktemp("source")
    source, mine = folder / "plugin", folder / "my-reward"
    subprocess.run(["cp", "-r", str(PLUGIN), str(source)], check=True)
    mine.mkdir()
    for name, text in shown_files().items():
        (mine / name).write_text(text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source), str(mine)], check=True)
    _write_defective(target)
    return target


def shown_files() -> dict[str, str]:
    """Return the files of *Your own reward in five minutes*, by name."""
    return dict(SHOWN.findall((ROOT / "docs" / "extending.md").read_text()))


def _write_defective(target: Path) -> None:
    code = "import torch\n\ndef broken(constants, *, gamma, task):\n"
    code += "    return lambda step: (step.reward / 0.0, {'x': step.reward / 0.0})\n\n"
    code += "broken.version = '1'\nbroken.env_kinds = ('gymnasium',)\nbroken.schema = {}\n"
    (target / "broken_reward.py").write_text(code)
    facts = target / "broken_reward-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-reward\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[lockstep.rewards]\nbroken = broken_reward:broken\n")


@pytest.fixture
def client(
    sqlite_server: LiveServer,
    start_worker: Callable[..., WorkerProcess],
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Client]:
    """A client of a server with one worker that has the package; this process has it not."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(ROOT)]))
    start_worker(sqlite_server.url)
    with httpx.Client(base_url=sqlite_server.url) as http, Client(sqlite_server.url) as made:
        wait_until(lambda: http.get("/api/v1/workers").json()["items"], what="a registered worker")
        yield made


def spec(name: str, **changes: Any) -> dict[str, Any]:
    return merge(yaml.safe_load((PLUGIN / f"{name}.yaml").read_text()), changes)


def refusals(client: Client, document: Mapping[str, Any]) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        client.submit(document)
    return {item["pointer"]: item["code"] for item in caught.value.document["errors"]}


def test_what_a_package_registers_is_trained_and_what_it_does_not_know_is_refused(
    client: Client, sqlite_server: LiveServer
) -> None:
    wrong = {"label": "thrifty", "reward": "thrifty"}
    shaped = {"label": "shaped", "reward": "shaped"}
    unknown = spec("thrifty", arms=[shaped, {**wrong, "overrides": {"reward.prize": 1.0}}])
    assert refusals(client, unknown) == {"/arms/1/overrides/reward.prize": "unknown_key"}
    negative = spec("thrifty", arms=[shaped, {**wrong, "overrides": {"reward.price": -1.0}}])
    assert refusals(client, negative) == {"/arms/1/overrides/reward.price": "out_of_range"}
    assert refusals(client, spec("corridor", env={"kwargs": {"width": 3}})) == {"/env/kwargs/width": "unknown_key"}
    for env, told in (
        ({"id": "CartPole-v7"}, {"/env/id": "unknown_environment"}),
        ({"id": "LunarLander-v3"}, {"/env/id": "defective_environment"}),
        ({"id": "CartPole-v1", "kwargs": {"lenght": 3}}, {"/env/kwargs/lenght": "unknown_key"}),
    ):
        assert refusals(client, cartpole_spec(env=env)) == told
    other_kind = spec("thrifty", arms=[shaped, {"label": "c", "reward": "centred"}])
    assert refusals(client, other_kind) == {"/arms/1/reward": "unknown_reward"}
    [worker] = client.workers()
    assert [item["name"] for item in worker["defects"]] == ["broken"]
    name = worker["name"]
    with pytest.raises(
        ApiError, match=f"did you mean 'centred'.*workers offer: centred on {name}, .*; broken cannot be "
    ):
        client.submit(spec("corridor", arms=[{"label": "a"}, {"label": "b", "reward": "centered"}]))
    defective = spec("corridor", arms=[{"label": "a"}, {"label": "b", "reward": "broken"}])
    assert refusals(client, defective) == {"/arms/1/reward": "defective_reward"}

    # as the page shows it, with a tenth of the rounds
    mine = {**yaml.safe_load(shown_files()["compare.yaml"]), "budget": {"rounds": 4}, "eval": {"every_rounds": 4}}
    ids = {name: client.submit(spec(name))["id"] for name in ("thrifty", "corridor")}
    ids["mine"] = client.submit(mine)["id"]
    for experiment_id in ids.values():
        assert follow(sqlite_server.url, experiment_id)[-1]["status"] == "succeeded"
    assert _last(client, ids["thrifty"], "xeval/return_thrifty").keys() == {"shaped", "thrifty"}
    assert "n = 6" in client.report(ids["mine"])["verdict"]["sentence"]
    assert _last(client, ids["mine"], "reward/away_mean").keys() == {"steady"}
    paid = _last(client, ids["corridor"], "reward/walk_mean")
    assert paid.keys() == {"centred"}
    assert paid["centred"] < 0
    own, native = (_last(client, ids["corridor"], f"eval/{n}return_mean") for n in ("", "native_"))
    assert own["native"] == native["native"]
    assert own["centred"] < native["centred"]
    crossed = _last(client, ids["corridor"], "xeval/return_centred")
    assert crossed["centred"] == pytest.approx(own["centred"])


def _last(client: Client, experiment_id: str, metric: str) -> dict[str, float]:
    """Return the last value of a metric by arm."""
    found = client.series(experiment_id, [metric], x="round")
    return {curve.arm: float(curve.mean[-1]) for curve in found if curve.mean.size}
