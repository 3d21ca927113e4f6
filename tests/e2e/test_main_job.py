"""The main job: a real server, real worker processes, the example, its verdict recomputed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep.client import Client
from lockstep.spec.text.reading import load_text
from tests.conftest import LiveServer, WorkerProcess
from tests.e2e import oracle
from tests.e2e.following import follow
from tests.e2e.numbers import numbers_of, scores_of
from tests.factories import tiny_spec

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("training")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits-shaped-vs-simplified.yaml"


def test_example_followed_to_its_end_gives_the_report_that_independent_code_computes(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    for _ in range(2):
        start_worker(sqlite_server.url)
    with Client(sqlite_server.url) as client:
        # its own six rounds show the machinery; reports are made of replicates, and all six are here
        experiment_id = client.submit(load_text(EXAMPLE.read_text()) | {"budget": {"rounds": 2}})["id"]
        frames = follow(sqlite_server.url, experiment_id, metrics=["train/accuracy_mean"])
        report = client.report(experiment_id)
        exported = client.report(experiment_id, "csv")
        html = client.report(experiment_id, "html")
    assert [frames[0]["type"], frames[1]["type"], frames[-1]["type"]] == ["hello", "snapshot", "end"]
    rounds = [item for frame in frames if frame["type"] == "delta" for item in frame["rounds"]]
    assert len(rounds) == 6 * 2
    assert all(len(item["comparison"]["arms"]) == 2 for item in rounds)
    assert frames[-1]["status"] == "succeeded"
    pairs = oracle.paired_scores(exported, "eval/accuracy", "shaped", "simplified")
    assert len(pairs) == 6
    found = report["comparisons"][0]
    sign = 1.0 if (found["a"], found["b"]) == ("shaped", "simplified") else -1.0
    differences = [sign * (first - second) for first, second in pairs]
    low, high = oracle.interval(differences, 0.05) or (None, None)
    assert found["estimate"] == pytest.approx(oracle.estimate(differences), abs=1e-9)
    assert found["p"] == pytest.approx(oracle.sign_flip_p(differences), abs=1e-12)
    assert found["ci_superiority"] == pytest.approx([low, high], abs=1e-9)
    # the records of training, from the first round on, say whether policies have learned
    assert (report["learning"]["metric"], report["learning"]["blocks"]) == ("train/accuracy_mean", 6)
    assert "train/accuracy_mean@start" in exported
    assert report["verdict"]["code"] == frames[-1]["verdict"]
    assert report["verdict"]["sentence"].split(":")[0] in html


def test_equal_arms_differ_by_exactly_zero_and_order_of_arms_changes_no_number(
    sqlite_server: LiveServer, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(sqlite_server.url)
    forth = tiny_spec(experiment={"replicates": 2})
    back = {**forth, "arms": forth["arms"][::-1]}
    same = [{"label": "A", "reward": "shaped"}, {"label": "A2", "reward": "shaped"}]
    twins = {**tiny_spec(experiment={"replicates": 2, "kind": "aa"}), "arms": same}
    with Client(sqlite_server.url) as client:
        ids = [client.submit(spec)["id"] for spec in (forth, back, twins)]
        for experiment_id in ids:
            follow(sqlite_server.url, experiment_id)
        first, second, equal = (numbers_of(client, sqlite_server.ctx, experiment_id) for experiment_id in ids)
        scores = scores_of(client, ids[2])
        report = client.report(ids[2])
    assert first == second
    assert {key: equal["A", key] for key in range(2)} == {key: equal["A2", key] for key in range(2)}
    assert all(scores["A", r] - scores["A2", r] == 0.0 for r in range(2))
    assert report["verdict"]["code"] == "IDENTICAL_RUNS"


BAD: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "unknown key": ({"ppo": {"lrr": 1e-3}}, "/ppo/lrr", "unknown_key"),
    "unknown reward mode": (
        {"arms": [{"label": "A", "reward": "shapd"}, {"label": "B", "reward": "sparse"}]},
        "/arms/0/reward",
        "unknown_reward",
    ),
    "one arm": ({"arms": [{"label": "A"}]}, "/arms", "too_short"),
    "alpha that the design cannot reach": (
        {"experiment": {"replicates": 5}, "analysis": {"inference": "full"}},
        None,
        "E_ALPHA_UNREACHABLE",
    ),
    "zero train batches": ({"env": {"batch_size": 65536}}, "/env/batch_size", "zero_batches"),
    "primary metric that depends on the reward": (
        {"analysis": {"primary": "eval/return_mean"}},
        "/analysis/primary/metric",
        "E_REWARD_DEPENDENT",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_spec_is_refused_with_field_and_remedy_and_nothing_is_stored(http: httpx.Client, name: str) -> None:
    changes, field, code = BAD[name]
    response = http.post("/api/v1/experiments", json=tiny_spec(**changes))
    assert response.status_code == 422, response.text
    document = response.json()
    assert document["code"] == "invalid_spec"
    found = [item for item in document["errors"] if item["code"] == code]
    assert found, document
    assert field is None or found[0]["pointer"] == field
    assert found[0]["remedy"]
    assert http.get("/api/v1/experiments").json()["items"] == []
    assert http.get("/api/v1/queue").json()["items"] == []
