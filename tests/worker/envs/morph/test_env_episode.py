"""Episode rows, evaluation, streams, splits and memory of MorphEnvs."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep import keys
from tests.worker.envs.morph.factories import (
    CPU,
    SEED,
    AccuracyGain,
    act,
    germinate,
    host_state,
    make,
    play,
    row,
    tiny,
)
from tests.worker.envs.morph.test_config import spec
from worker.envs.family import RunEnv
from worker.envs.morph.engine.eager import Engine
from worker.envs.morph.episode.build import make_envs
from worker.envs.morph.episode.controls import make_control
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life.stages import Op
from worker.envs.morph.task import data

METRICS = {
    "final_accuracy", "best_accuracy", "final_loss", "test_accuracy", "test_loss", "committed_accuracy",
    "accuracy_auc", "episode_return", "episode_return_raw", "episode_reward", "episode_length", "host_params",
    "graft_params", "total_params", "param_ratio", "n_germinated", "n_advanced", "n_fossilized", "n_pruned_policy",
    "n_pruned_ramp", "n_pruned_governor", "n_invalid", "n_vetoed", "rollbacks", "rollback_cause", "rollback_step",
    "contribution_fossils", "positive_fossils", "mean_dwell_training", "mean_time_to_fossil", "skipped_batches",
    "train_examples", "val_rows", "wall_seconds", "device_seconds", "host_seed_key", "n_contributing", "outcome",
    "phase", "env_id", "episode_idx", "env_steps", *(f"op_share_{op.name.lower()}" for op in Op),
}  # fmt: skip


def wait_through(envs: MorphEnvs, round_index: int = 0) -> list[dict[str, Any]]:
    envs.begin_round(round_index)
    for _ in range(envs.steps_per_round):
        envs.step([act(envs, row(envs)) for _ in envs.runs])
    return [episode.values for episode in envs.pop_episodes(0)]


def live(envs: MorphEnvs) -> None:
    script = [germinate(envs, 0), row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)]
    script += [row(envs, Op.ADVANCE, 0), row(envs, Op.FOSSILIZE, 0)]
    for action in script:
        play(envs, action)


def test_episode_row_has_every_metric_under_its_name() -> None:
    values = wait_through(make(tiny()))[0]
    assert set(values) >= METRICS
    assert values["test_accuracy"] is None
    assert values["host_seed_key"] == keys.derive(SEED, "host_init", env=0, episode=0)
    assert values["train_examples"] == 8 * 2 * 64
    assert values["mean_dwell_training"] is None
    assert values["contribution_fossils"] is None
    assert (values["phase"], values["outcome"], values["episode_length"]) == ("train", "horizon", 8)


def test_episode_row_of_a_life_counts_its_ops_and_its_fossil() -> None:
    envs = make(tiny(horizon=7))
    envs.begin_round(2)
    live(envs)
    result = play(envs, row(envs))
    values = envs.pop_episodes(0)[0].values
    assert envs.pop_episodes(0) == []
    assert (values["n_germinated"], values["n_advanced"], values["n_fossilized"]) == (1, 3, 1)
    assert (values["mean_dwell_training"], values["mean_time_to_fossil"]) == (2.0, 5.0)
    assert values["op_share_advance"] == pytest.approx(3 / 7)
    assert values["graft_params"] == 614
    assert values["param_ratio"] == pytest.approx((152 + 614) / 152)
    assert values["topology"] == {"r0c0": "bottleneck"}
    assert values["committed_accuracy"] == values["final_accuracy"]
    gain = envs.runs[0].world.tracker.loss_gain[0, 0]
    assert values["contribution_fossils"] == pytest.approx(gain)
    assert values["episode_idx"] == 2
    assert bool(result.terminated[0])
    events = envs.pop_events(0)
    kinds = [event["type"] for event in events]
    alphas = [event["alpha"] for event in events]
    # an event tells alpha at its instant: it grows by blending alone
    assert (alphas[0], alphas[1], alphas[2]) == (0.0, 0.0, 0.0)
    assert alphas[3] == alphas[4] > 0.0
    assert kinds == ["graft_germinated", *["graft_stage_changed"] * 3, "graft_fossilized"]
    assert envs.pop_events(0) == []


def test_horizon_may_truncate_instead_of_terminating() -> None:
    envs = make(tiny(horizon=6, horizon_end="truncated"))
    envs.begin_round(0)
    results = [play(envs, row(envs)) for _ in range(6)]
    assert not any(bool(r.terminated[0]) for r in results)
    assert [bool(r.truncated[0]) for r in results] == [False] * 5 + [True]


def test_reward_sums_add_up_to_what_was_paid() -> None:
    envs = make(tiny(), num_envs=2)
    envs.begin_round(0)
    paid = sum(play(envs, row(envs), row(envs)).reward for _ in range(8))
    assert isinstance(paid, torch.Tensor)
    total = sum(envs.reward_sums(0).values())
    assert isinstance(total, torch.Tensor)
    torch.testing.assert_close(total, paid, atol=1e-4, rtol=0)


# defect 46
def test_evaluation_uses_its_own_keys_scores_the_test_split_and_other_rewards() -> None:
    envs = make(tiny(), phase="eval", num_envs=2)
    values = wait_through(envs)
    again = wait_through(envs, round_index=7)
    for first, second in zip(values, again, strict=True):
        same = {k: v for k, v in first.items() if "seconds" not in k}
        assert same == {k: v for k, v in second.items() if "seconds" not in k}
    assert [v["host_seed_key"] for v in values] == [keys.derive(SEED, "eval/host_init", episode=i) for i in range(2)]
    assert all(0.0 <= v["test_accuracy"] <= 100.0 and v["test_loss"] > 0 for v in values)
    assert values[0]["xeval"]["other"] == pytest.approx(values[0]["episode_return"])
    train = wait_through(make(tiny(), num_envs=2))
    assert train[0]["final_loss"] != values[0]["final_loss"]


def test_evaluation_beside_training_leaves_training_unchanged() -> None:
    def final(evaluates: bool) -> torch.Tensor:
        envs = make(tiny())
        envs.begin_round(0)
        other = make(tiny(), phase="eval") if evaluates else None
        for _ in range(8):
            play(envs, row(envs))
        if other is not None:
            wait_through(other)
        wait_through(envs, 1)
        return host_state(envs)

    assert torch.equal(final(False), final(True))


# defect 15
def test_training_environment_refuses_the_test_split_and_never_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make(tiny())
    with pytest.raises(PermissionError, match="test split"):
        _ = envs.test
    wait_through(envs)
    before = host_state(envs)
    arrays = data.load("digits", None)
    labels = arrays.labels.copy()
    labels[arrays.splits["test"]] = labels[arrays.splits["test"]][::-1]
    permuted = replace(arrays, labels=labels)
    assert permuted.fingerprint() != arrays.fingerprint()
    monkeypatch.setattr(data, "load", lambda *_: permuted)
    changed = make(tiny())
    wait_through(changed)
    assert torch.equal(host_state(changed), before)


# defect 39
def test_episode_leaves_the_global_generators_alone() -> None:
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[index]
    envs = make(tiny(horizon=12), policies=["random"], num_envs=2)
    control = make_control("random", envs, 0)
    envs.begin_round(0)
    for step in range(12):
        envs.step([control.act(step)])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]


# defect 44
def test_memory_is_flat_over_twenty_rounds() -> None:
    envs = make(tiny(horizon=6, batches_per_step=1, val_images=200), policies=["random"])
    control = make_control("random", envs, 0)

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    counts = []
    for number in range(20):
        # the same round again and again: what it allocates must not accumulate
        envs.begin_round(0)
        for step in range(6):
            envs.step([control.act(step)])
        envs.pop_episodes(0)
        envs.pop_events(0)
        if number in (2, 19):
            counts.append(alive())
    assert counts[0] == counts[1]


# defect 27
def test_telemetry_level_never_changes_a_trajectory() -> None:
    states = []
    for level in ("minimal", "normal", "debug"):
        config = spec(horizon=8, batches_per_step=2)
        config["telemetry"] = {"level": level}
        run = RunEnv("a", "a", "ppo", None, 0.995)
        envs = make_envs(
            config,
            [run],
            replicate_seed=SEED,
            device=CPU,
            num_envs=1,
            phase="train",
            rewards=[AccuracyGain()],
        )
        envs.begin_round(0)
        live(envs)
        states.append(host_state(envs))
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


# defect 38
def test_momentum_survives_fossilisation_bitwise() -> None:
    envs = make(tiny())
    envs.begin_round(0)
    for action in (germinate(envs, 0), row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)):
        play(envs, action)
    play(envs, row(envs, Op.ADVANCE, 0))
    world = envs.runs[0].world
    store = world.networks[0].cell(0).store
    before = (store.momentum.clone(), store.flat.clone())
    world.execute(0, _fossilize(envs))
    assert torch.equal(world.networks[0].cell(0).store.momentum, before[0])
    assert torch.equal(world.networks[0].cell(0).store.flat, before[1])
    assert float(before[0].abs().sum()) > 0


def _fossilize(envs: MorphEnvs) -> Any:
    from worker.envs.morph.life.actions import decode

    return decode(row(envs, Op.FOSSILIZE, 0), 0, envs.runs[0].legal, envs.heads)


# defect 2
@pytest.mark.parametrize("blueprint", ["conv_light", "depthwise", "bottleneck"])
def test_prospective_loss_after_the_dwell_is_at_most_main_plus_a_tenth(blueprint: str) -> None:
    envs = make(tiny(horizon=12, batches_per_step=8), num_envs=3)
    envs.begin_round(0)
    for _ in range(4):
        play(envs, row(envs))
    play(envs, germinate(envs, 0, blueprint))
    play(envs, row(envs, Op.ADVANCE, 0))
    play(envs, row(envs))
    gains = envs.runs[0].world.tracker.prospective[:, 0]
    assert (gains >= -0.1).all(), gains


def test_auto_advance_takes_the_step_at_which_advance_would_be_legal() -> None:
    envs = make(tiny(horizon=10, auto_advance=("g1", "g2", "g3")))
    envs.begin_round(0)
    play(envs, germinate(envs, 0))
    stages = []
    for _ in range(4):
        assert not envs.runs[0].legal.op[0, Op.FOSSILIZE]
        assert not envs.runs[0].legal.op[0, Op.ADVANCE]
        play(envs, row(envs))
        stages.append(int(envs.runs[0].world.table.stage[0, 0]))
    assert stages == [3, 3, 4, 6]
    assert envs.runs[0].legal.op[0, Op.FOSSILIZE]


def test_interaction_of_two_live_grafts_reaches_reward_and_observation() -> None:
    envs = make(tiny(horizon=20), policies=["static_matched"], static_set={"r0c0": "norm", "r0c1": "conv_small"})
    envs.begin_round(0)
    result = play(envs, row(envs))
    moment = envs.runs[0].moment
    assert np.isfinite(moment.interactions[0, 0, 1])
    assert moment.interactions[0, 0, 1] == moment.interactions[0, 1, 0]
    assert np.isnan(moment.interactions[0, 0, 0])
    assert np.isfinite(moment.contribution).all()
    assert result.observation.features[0, 32 + 19] == 1.0
    per_slot = moment.contribution[0].sum() - moment.cf[0]
    assert float(per_slot) == pytest.approx(float(moment.interactions[0, 0, 1]), abs=1e-3)


def test_state_round_trips_and_a_foreign_state_is_refused() -> None:
    envs = make(tiny(), runs=2)
    envs.load_state_dict(0, envs.state_dict(0))
    with pytest.raises(ValueError, match="run is 'arm1'"):
        envs.load_state_dict(0, envs.state_dict(1))


def test_fresh_environments_continue_a_run_as_if_never_interrupted() -> None:
    whole = make(tiny())
    for number in range(3):
        wait_through(whole, number)
    resumed = make(tiny())
    resumed.load_state_dict(0, whole.state_dict(0))
    wait_through(resumed, 2)
    assert torch.equal(host_state(whole), host_state(resumed))


def test_runs_and_rewards_must_match_in_number() -> None:
    run = RunEnv("a", "a", "ppo", None, 0.995)
    with pytest.raises(ValueError, match="1 runs need as many rewards"):
        make_envs(spec(), [run], replicate_seed=1, device=CPU, num_envs=1, phase="train", rewards=[])


def test_automatic_advance_leaves_the_other_gates_to_the_policy() -> None:
    envs = make(tiny(horizon=10, auto_advance=("g1",)))
    envs.begin_round(0)
    play(envs, germinate(envs, 0))
    assert not envs.runs[0].legal.op[0, Op.ADVANCE]
    for _ in range(2):
        play(envs, row(envs))
    assert envs.runs[0].legal.slot[0, Op.ADVANCE].tolist() == [True, False]


# defect 25
def test_graft_without_effect_never_passes_a_strict_gate() -> None:
    envs = make(tiny(horizon=12, gates="strict"))
    envs.begin_round(0)
    envs.runs[0].world.networks[0]._graft_step.lr.zero_()
    play(envs, germinate(envs, 0))
    play(envs, row(envs, Op.ADVANCE, 0))
    for _ in range(8):
        play(envs, row(envs))
        assert float(envs.runs[0].world.tracker.prospective[0, 0]) == 0.0
        assert not envs.runs[0].legal.op[0, Op.ADVANCE]


def test_vetoed_fossilize_is_executed_as_wait_and_reported() -> None:
    envs = make(tiny(horizon=10))
    envs.begin_round(0)
    script = [germinate(envs, 0), row(envs, Op.ADVANCE, 0), row(envs), row(envs, Op.ADVANCE, 0)]
    for action in [*script, row(envs, Op.ADVANCE, 0)]:
        play(envs, action)
    envs.runs[0].world.governors[0].streak = 1
    result = play(envs, row(envs, Op.FOSSILIZE, 0))
    assert result.observation.features[0, 18:25].tolist() == [0.0, 1.0, *[0.0] * 5]
    for _ in range(4):
        play(envs, row(envs))
    values = envs.pop_episodes(0)[0].values
    assert (values["n_vetoed"], values["n_fossilized"], values["grafts_live"]) == (1, 0, 1)


class _Synchronisations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that read a tensor's value on the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal"):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_training_and_validation_read_nothing_back_before_their_one_copy() -> None:
    envs = make(tiny(horizon=8))
    envs.begin_round(0)
    live(envs)
    play(envs, germinate(envs, 1))
    play(envs, row(envs, Op.ADVANCE, 1))
    draws = envs._draws.take(0, 0, envs._step)
    job = envs._job(envs.runs[0].world, 0, draws, last=True)
    assert isinstance(envs.engine, Engine)
    with _Synchronisations() as seen:
        packed = envs.engine._issue(job, envs.data.gather(draws), envs.data.val)
    assert seen.found == []
    assert packed.ndim == 1


def test_static_matched_without_a_set_is_refused() -> None:
    with pytest.raises(ValueError, match="static_matched needs static_set"):
        make(tiny(), policies=["static_matched"])
