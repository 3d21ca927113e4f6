"""Lockstep semantics: A/A zero, isolation, order, warm-up, divergence, controls (training.md 3)."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any

import pytest
import torch

from lockstep.spec.presets import merge
from tests.worker.train.cases import (
    BOX_ARMS,
    CPU,
    GYM,
    GYM_ARMS,
    GYM_BOX,
    GYM_KIT,
    GYM_LSTM,
    MORPH,
    MORPH_ARMS,
    Arms,
    block,
    digests,
    policy_bits,
    train,
    trainer,
)
from worker.envs.base import LockstepEnvs
from worker.train.block import ArmOutOfMemory, BlockPlan, BlockTrainer, ConfigRefused, update_order
from worker.train.environments import ordered_runs
from worker.train.evaluate import Evaluator
from worker.train.runs import TrainedRun

AA: Arms = [{"label": "A"}, {"label": "B"}]
BASES = [pytest.param(GYM, id="gym"), pytest.param(GYM_LSTM, id="gym_lstm"), pytest.param(MORPH, id="morph")]
SPACES = [pytest.param(GYM_BOX, id="box"), pytest.param(GYM_KIT, id="kit")]


def arms_of(base: dict[str, Any]) -> Arms:
    return {id(MORPH): MORPH_ARMS, id(GYM_BOX): BOX_ARMS, id(GYM_KIT): BOX_ARMS}.get(id(base), GYM_ARMS)


@pytest.mark.parametrize("base", BASES)
def test_equal_arms_give_bit_equal_runs(base: dict[str, Any]) -> None:
    records = train(block(base, AA))
    assert digests(records, "run-A") == digests(records, "run-B")
    a, b = records[-1].runs
    assert {k: v for k, v in a.metrics.items() if not k.startswith("sys/") and "seconds" not in k} == pytest.approx(
        {k: v for k, v in b.metrics.items() if not k.startswith("sys/") and "seconds" not in k},
        abs=0,
        nan_ok=True,
    )


@pytest.mark.parametrize("base", [*BASES, *SPACES])
def test_an_arm_alone_equals_the_arm_beside_another_and_repeats(base: dict[str, Any]) -> None:
    arms = arms_of(base)
    both = train(block(base, arms))
    alone = train(block(base, arms, only=(0,)))
    assert digests(both, "run-A") == digests(alone, "run-A")
    assert digests(both, "run-A") != digests(both, "run-B")


@pytest.mark.parametrize("base", BASES)
def test_swapping_the_order_of_arms_changes_nothing(base: dict[str, Any]) -> None:
    arms = arms_of(base)
    forward, backward = train(block(base, arms)), train(block(base, arms[::-1]))
    for run in ("run-A", "run-B"):
        assert digests(forward, run) == digests(backward, run)


def test_forcing_another_update_order_changes_nothing() -> None:
    plan = block(GYM, GYM_ARMS)
    results = []
    for order in ([0, 1], [1, 0]):
        forced = trainer(plan)
        forced.update_order = lambda _, order=order: order  # type: ignore[misc]
        records = list(forced.rounds(0))
        assert all(record.update_order == order for record in records)
        results.append([digests(records, run) for run in ("run-A", "run-B")])
    assert results[0] == results[1]


def test_update_order_is_keyed_and_varies_over_rounds() -> None:
    orders = [update_order(321, r, 2) for r in range(20)]
    assert {tuple(o) for o in orders} == {(0, 1), (1, 0)}
    assert orders == [update_order(321, r, 2) for r in range(20)]
    records = train(block(GYM, GYM_ARMS))
    assert [r.update_order for r in records] == orders[: len(records)]


@pytest.mark.parametrize(("num_arms", "replicate"), [(k, r) for k in (2, 3) for r in range(6)])
def test_batch_position_rotates_with_the_replicate(num_arms: int, replicate: int) -> None:
    arms: Arms = [{"label": f"a{i}", "overrides": {"ppo.lr": 1e-3 * (i + 1)}} for i in range(num_arms)]
    plan = block(GYM, arms, replicate=replicate)
    positions = {plan.runs[i].arm_index: p for p, i in enumerate(ordered_runs(plan))}
    assert positions == {k: (k + replicate) % num_arms for k in range(num_arms)}


def test_rotation_changes_no_number() -> None:
    first, second = (train(block(GYM, GYM_ARMS, replicate=r)) for r in (0, 1))
    assert digests(first, "run-A") == digests(second, "run-A")
    assert [run.batch_position for run in first[0].runs] == [0, 1]
    assert [run.batch_position for run in second[0].runs] == [1, 0]


class _Logged(TrainedRun):
    log: list[tuple[str, int, int]]

    def chosen(self, t: int, part: int = 0) -> torch.Tensor | None:
        self.log.append((self.plan.arm, self.round, t))
        return super().chosen(t, part)


def test_arms_alternate_within_every_step_and_meet_after_every_round() -> None:
    held = trainer(block(GYM, GYM_ARMS), stacked=False)
    log: list[tuple[str, int, int]] = []
    for run in held.runs:
        run.__class__ = _Logged
        run.log = log  # type: ignore[union-attr]
    for record in held.rounds(0):
        assert [run.run_id for run in record.runs] == ["run-A", "run-B"]
        assert log[-1][1] == record.round
    steps = [(r, t) for _, r, t in log]
    assert steps == sorted(steps)
    assert [arm for arm, _, _ in log] == ["A", "B"] * (len(log) // 2)


@pytest.mark.parametrize("base", BASES)
def test_warm_up_leaves_no_trace(base: dict[str, Any]) -> None:
    plan = block(base, arms_of(base), budget={"rounds": 1})
    cold, warm = trainer(plan), trainer(plan)
    assert warm.warm_up()["seconds"] > 0
    assert policy_bits(cold) == policy_bits(warm)
    assert [r.digest for r in next(cold.rounds(0)).runs] == [r.digest for r in next(warm.rounds(0)).runs]


def test_what_rests_serves_the_next_replicate_and_changes_no_number() -> None:
    plans = [block(MORPH, MORPH_ARMS, replicate=number, seed=300 + number) for number in range(2)]
    clean = [[(record.round, run.digest, run.eval_episodes) for record in train(plans[1]) for run in record.runs]]
    first = trainer(plans[0])
    list(first.rounds(0))
    first.close()
    assert first.family.rest is not None
    first.family.rest()
    following = trainer(plans[1])
    assert networks_of(following) == networks_of(first)
    clean.append(
        [(record.round, run.digest, run.eval_episodes) for record in following.rounds(0) for run in record.runs]
    )
    assert without_clock(clean[0]) == without_clock(clean[1])
    # what does not rest serves nobody else
    assert not networks_of(trainer(plans[0])) & networks_of(following)


def networks_of(held: BlockTrainer) -> set[int]:
    """Return which networks the hosts of a trainer are."""
    return networks_in(held.envs)


def networks_in(envs: LockstepEnvs) -> set[int]:
    """Return which networks the hosts of environments are."""
    parts = [cohort.envs for cohort in envs.cohorts]
    return {id(network) for part in parts for run in part.runs for network in run.world.networks}  # type: ignore[attr-defined]


def without_clock(rounds: list[tuple[int, str, list[dict[str, Any]]]]) -> list[Any]:
    """Return digests and evaluations without what was read off a clock."""
    clocked = ("seconds", "wall")
    return [
        (index, digest, [{k: v for k, v in row.items() if not any(c in k for c in clocked)} for row in rows])
        for index, digest, rows in rounds
    ]


@pytest.mark.parametrize("base", BASES)
def test_evaluation_consumes_no_training_stream(base: dict[str, Any]) -> None:
    often = block(base, arms_of(base), eval={"every_rounds": 1, "mode": "both"})
    rarely = block(base, arms_of(base), eval={"every_rounds": 50})
    assert digests(train(often), "run-A") == digests(train(rarely), "run-A")


def test_hosts_of_training_serve_evaluation_and_change_no_number() -> None:
    arms: Arms = [{"label": "A", "policy": "heuristic"}, {"label": "B", "policy": "random"}, {"label": "C"}]
    plan = block(MORPH, arms, env={"horizon": 12, "pace": "quick"}, eval={"every_rounds": 1, "mode": "both"})
    held, idle = trainer(plan), trainer(plan)
    # evaluates the same policies on networks that train nothing
    beside = Evaluator(plan, CPU, None, idle.envs)
    grown = 0
    for record in held.rounds(0):
        fresh = beside.evaluate(held.runs, record.round)
        for run in record.runs:
            clean = fresh[run.run_id]
            assert {name: run.metrics[name] for name in clean.metrics} == clean.metrics
            rows = [[(record.round, "", episodes)] for episodes in (run.eval_episodes, clean.rows)]
            assert without_clock(rows[0]) == without_clock(rows[1])
            grown += sum(row["n_germinated"] for row in clean.rows)
    assert grown > 0
    for evaluator, envs in ((held.evaluator, held.envs), (beside, idle.envs)):
        assert evaluator._envs is not None
        assert networks_in(evaluator._envs) == networks_in(envs)
    assert not networks_of(held) & networks_of(idle)


def test_telemetry_level_changes_no_number() -> None:
    seen = {}
    for level in ("minimal", "normal", "debug"):
        records = train(block(GYM, GYM_ARMS, telemetry={"level": level}))
        seen[level] = (digests(records, "run-A"), set(records[0].runs[0].metrics))
    assert seen["minimal"][0] == seen["normal"][0] == seen["debug"][0]
    assert seen["minimal"][1] < seen["normal"][1] < seen["debug"][1]


def test_debug_tells_the_gradient_of_every_parameter_each_stride_of_rounds() -> None:
    records = {
        stride: train(block(GYM, GYM_ARMS, telemetry={"level": "debug", "grad_stride": stride})) for stride in (1, 2)
    }
    told = {
        stride: [
            {n for n in r.runs[0].metrics if n.startswith("ppo/grad_norm_") and "clipped" not in n} for r in rounds
        ]
        for stride, rounds in records.items()
    }
    assert [bool(names) for names in told[1]] == [True, True, True]
    assert [bool(names) for names in told[2]] == [True, False, True]
    assert {"ppo/grad_norm_actor_1_weight", "ppo/grad_norm_value_out_bias"} <= told[2][0]
    assert digests(records[1], "run-A") == digests(records[2], "run-A")
    # together they are the norm of the whole: the last step's, which was clipped at grad_clip
    metrics = records[1][0].runs[0].metrics
    whole = math.hypot(*(metrics[name] for name in told[1][0]))
    assert 0.0 < whole <= 1.001 * float(block(GYM, GYM_ARMS).runs[0].config["ppo"]["grad_clip"])


def test_noise_in_another_arm_leaves_this_arm_unchanged() -> None:
    plan = block(MORPH, MORPH_ARMS)
    clean = digests(train(plan), "run-A")
    broken = trainer(plan)
    other = broken.runs[1]
    assert isinstance(other, TrainedRun)
    with torch.no_grad():
        other.learner.flat.data[:] = torch.nan
    records = list(broken.rounds(0))
    assert digests(records, "run-A") == clean
    [failed] = [run for run in records[0].runs if run.run_id == "run-B"]
    assert failed.diverged is not None
    assert "non-finite" in failed.diverged
    assert [run.run_id for run in records[1].runs] == ["run-A"]


def test_graft_churn_in_another_arm_leaves_this_arm_unchanged() -> None:
    quiet = block(MORPH, [{"label": "A"}, {"label": "B", "policy": "noop"}])
    churn = block(MORPH, [{"label": "A"}, {"label": "B", "policy": "random"}])
    one, two = train(quiet), train(churn)
    assert digests(one, "run-A") == digests(two, "run-A")
    assert digests(one, "run-B") != digests(two, "run-B")


@pytest.mark.parametrize("cause", ["huge rate", "dead updates"])
def test_a_diverged_run_ends_alone(cause: str) -> None:
    huge = {"ppo.lr": 1e18, "ppo.value_coef": 1e18} if cause == "huge rate" else {"ppo.lr": 1e-3}
    arms: Arms = [{"label": "A"}, {"label": "B", "overrides": huge}]
    # an argument, if only its default, lets the task step itself: its environment can be replaced
    base = merge(GYM, {"env": {"kwargs": {"sutton_barto_reward": False}}})
    held = trainer(block(base, arms, budget={"rounds": 5}))
    if cause == "dead updates":
        other = held.runs[1]
        assert isinstance(other, TrainedRun)
        held.envs._lanes[1][0].env = _HugeReward(held.envs._lanes[1][0].env)  # type: ignore[attr-defined]
    records = list(held.rounds(0))
    ends = [run.diverged for record in records for run in record.runs if run.run_id == "run-B"]
    assert ends[-1] is not None
    assert ends[:-1] == [None] * (len(ends) - 1)
    assert len(ends) < 5
    assert digests(records, "run-A") == digests(train(block(base, arms, only=(0,), budget={"rounds": 5})), "run-A")


class _HugeReward:
    """A real environment whose rewards are finite and whose returns overflow."""

    def __init__(self, env: Any) -> None:
        self.env, self.spec = env, env.spec

    def reset(self, **keys: Any) -> Any:
        return self.env.reset(**keys)

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, 1e37, terminated, truncated, info


def test_crn_environment_gives_equal_arms_their_own_noise() -> None:
    records = train(block(GYM, AA, lockstep={"crn": "environment"}))
    assert digests(records, "run-A") != digests(records, "run-B")


def test_rounds_can_be_taken_from_any_start() -> None:
    held = trainer(block(GYM, GYM_ARMS))
    assert [record.round for record in held.rounds(2)] == [2]


def test_shared_frozen_statistics_are_equal_in_all_arms_and_never_move() -> None:
    norm = {"enabled": True, "sharing": "shared_frozen", "calibration_episodes": 2}
    held = trainer(block(MORPH, MORPH_ARMS, obs_norm=norm))
    iterator = held.rounds(0)
    next(iterator)
    states = [run.learner.obs_norm.state_dict() for run in held.runs]  # type: ignore[union-attr]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert float(states[0]["count"].max()) > 0
    before = {k: v.clone() for k, v in states[0].items()}
    list(iterator)
    after = held.runs[0].learner.obs_norm.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(before[k], after[k]) for k in before)
    alone = train(block(MORPH, MORPH_ARMS, only=(0,), obs_norm=norm))
    assert digests(alone, "run-A") == digests(train(block(MORPH, MORPH_ARMS, obs_norm=norm)), "run-A")


def test_metrics_of_every_group_are_present() -> None:
    records = train(block(MORPH, MORPH_ARMS))
    a = records[-1].runs[0]
    for name in (
        "train/return_mean",
        "train/accuracy_mean",
        "reward/attribution_mean",
        "policy/entropy_op",
        "policy/op_frac_WAIT",
        "policy/mask_valid_mean_slot",
        "ppo/approx_kl",
        "ppo/explained_variance",
        "eval/accuracy",
        "eval/gain_over_twin",
        "xeval/return_shaped",
        "xeval/return_simplified",
        "sys/env_steps",
    ):
        assert math.isfinite(a.metrics[name]), name
    shares = [v for k, v in a.metrics.items() if k.startswith("policy/op_frac_")]
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)
    assert a.env_steps == 2 * 2 * 8
    assert len(a.episodes) == 2
    assert a.episodes[0]["round"] == 1
    components = [v for k, v in a.metrics.items() if k.startswith("reward/") and k.endswith("_mean")]
    assert sum(components) == pytest.approx(a.metrics["train/return_mean"], abs=1e-4)


@pytest.mark.parametrize("policy", ["noop", "random", "heuristic", "fixed_schedule"])
def test_controls_run_in_the_same_loop_without_ppo_metrics_or_anomalies(policy: str) -> None:
    arms: Arms = [{"label": "A"}, {"label": "B", "policy": policy}]
    records = train(block(MORPH, arms))
    control = records[-1].runs[1]
    assert not any(name.startswith("ppo/") for name in control.metrics)
    assert math.isfinite(control.metrics["eval/accuracy"])
    assert not [e for r in records for e in r.runs[1].events if e["type"].startswith("anomaly")]


def test_random_policy_runs_on_gymnasium_and_slots_are_refused_there() -> None:
    records = train(block(GYM, [{"label": "A"}, {"label": "B", "policy": "random"}]))
    assert math.isfinite(records[-1].runs[1].metrics["eval/native_return_mean"])
    with pytest.raises(ConfigRefused, match="needs slots"):
        train(block(GYM, [{"label": "A"}, {"label": "B", "policy": "noop"}]))


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"env": {"id": "CartPole-v9"}}, "env", "CartPole-v9"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused_before_round_0(
    change: dict[str, Any], field: str, words: str
) -> None:
    plan: BlockPlan = block(GYM, GYM_ARMS, **change)
    with pytest.raises(ConfigRefused, match=words) as refused:
        BlockTrainer(plan, torch.device("cpu"))
    assert refused.match(field)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("begin", "start"),
        ("choose", "acting"),
        ("chosen", "acting"),
        ("see", "rollout"),
        ("pay", "rollout"),
        ("update", "update"),
    ],
)
def test_memory_that_runs_out_in_one_arms_own_work_is_pinned_on_that_arm(
    monkeypatch: pytest.MonkeyPatch, name: str, work: str
) -> None:
    held = trainer(block(GYM, GYM_ARMS), stacked=False)

    def exhausted(*_args: Any, **_named: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(next(run for run in held.runs if run.plan.arm == "B"), name, exhausted)
    with pytest.raises(ArmOutOfMemory, match=rf"{work}.*arm B ran out of memory.*80 GiB") as caught:
        next(held.rounds(0))
    assert caught.value.run_id == "run-B"


def test_memory_that_runs_out_in_an_evaluation_is_pinned_and_in_the_common_step_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = trainer(block(GYM, GYM_ARMS, eval={"every_rounds": 1}), stacked=False)
    trained = [run for run in held.runs if isinstance(run, TrainedRun)]
    net = next(run for run in trained if run.plan.arm == "B").learner.net
    plain, calls = net.step, iter(range(10**6))

    def exhausted(*args: Any) -> Any:
        if next(calls) == held.envs.steps_per_round:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        return plain(*args)

    monkeypatch.setattr(net, "step", exhausted)
    with pytest.raises(ArmOutOfMemory, match=r"evaluation of arm B.*80 GiB"):
        next(held.rounds(0))

    def all_exhausted(_actions: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(held.envs, "step", all_exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        next(held.rounds(0))


def test_trainer_tells_start_update_evaluation_and_cross_evaluation_once_each() -> None:
    first, last = train(block(MORPH, MORPH_ARMS, eval={"every_rounds": 2}))
    kinds = [[event["type"] for event in record.runs[0].events] for record in (first, last)]
    told = {"run_started", "ppo_update_completed", "evaluation_completed", "cross_evaluation_completed"}
    assert [kind for kind in kinds[0] if kind in told] == ["run_started", "ppo_update_completed"]
    started = [next(e for e in run.events if e["type"] == "run_started") for run in first.runs]
    assert [event["diff"] for event in started] == [
        [],
        [{"path": "reward.mode", "base": "shaped", "value": "simplified"}],
    ]
    for event in started:
        assert (event["git_sha"] is None) != (event["git_sha_reason"] is None)
        assert event["version"] == version("lockstep")
    expected = ["ppo_update_completed", "evaluation_completed", "cross_evaluation_completed"]
    assert [kind for kind in kinds[1] if kind in told] == expected
    run = last.runs[0]
    payloads = {event["type"]: event for event in run.events}
    update = payloads["ppo_update_completed"]
    assert update["metrics"]["steps_done"] == run.metrics["ppo/steps_done"]
    assert set(update["skipped"]) == {"kl_stop", "non_finite"}
    assert payloads["evaluation_completed"]["metrics"]["eval/accuracy"] == run.metrics["eval/accuracy"]
    assert payloads["evaluation_completed"]["episodes"] == 2
    assert set(payloads["cross_evaluation_completed"]["matrix_row"]) == {"shaped", "simplified"}


@pytest.mark.parametrize("policy", ["noop", "random", "heuristic", "fixed_schedule"])
def test_twenty_rounds_of_a_control_raise_no_anomaly(policy: str) -> None:
    arms = [{"label": "A", "policy": policy}, {"label": "B", "policy": "noop", "reward": "sparse"}]
    records = train(block(MORPH, arms, only=(0,), budget={"rounds": 20}, eval={"every_rounds": 20, "xeval": False}))
    assert len(records) == 20
    raised = [e for record in records for e in record.runs[0].events if e["type"].startswith("anomaly")]
    assert raised == []


def test_three_arms_train_together_and_record_every_round() -> None:
    arms = [*GYM_ARMS, {"label": "C", "overrides": {"ppo.gamma": 0.9}}]
    records = train(block(GYM, arms))
    assert [[run.run_id for run in record.runs] for record in records] == [["run-A", "run-B", "run-C"]] * 3
    assert len({run.digest for run in records[-1].runs}) == 3
