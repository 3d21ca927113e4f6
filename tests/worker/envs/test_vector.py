"""Batched simulators: the three autoreset modes against environments one by one, resume, isolation, refusals."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lockstep.spec.environments.gymnasium import RANDOM_NUMBERS, RESUMED_EPISODES
from tests.worker.train.cases import CPU, GYM, GYM_ARMS, block, digests, train
from worker import capabilities
from worker.envs.base import LockstepEnvs, StepResult
from worker.envs.faults import EnvironmentFault
from worker.envs.gymnasium import family
from worker.envs.gymnasium.checking import check
from worker.train.block import BlockTrainer
from worker.train.environments import make_environments
from worker.train.plan import ConfigRefused

E, STEPS = 3, 14
Factory = Callable[..., Any]


class Walk(gymnasium.Env[Any, Any]):
    """Ends after two steps right in a row, is cut after five; nothing is drawn unless it is seeded.

    Args:
        seeded: whether an episode begins at a place of its seed.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2, start=3)

    def __init__(self, *, seeded: bool = False) -> None:
        self._seeded = seeded

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._begin = float(self.np_random.random()) if self._seeded else 0.25
        self._rights = self._age = 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        self._rights = self._rights + 1 if action == 4 else 0
        over = self._rights == 2
        return self._shown(), float(action) + self._begin, over, self._age == 5, {"is_success": over}

    def _shown(self) -> Any:
        return np.array([self._begin, self._age + 0.5 * self._rights])


def walks(mode: AutoresetMode, *, seeded: bool = False) -> Factory:
    def make(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([partial(Walk, seeded=seeded)] * num_envs, autoreset_mode=mode)

    return make


def carts() -> Any:
    path = Path(__file__).parents[3] / "examples/plugin/lockstep_example/carts.py"
    spec = importlib.util.spec_from_file_location("carts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Carts


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def use(seeded: bool) -> None:
        gymnasium.registry.pop("Walk-v0", None)
        gymnasium.register("Walk-v0", entry_point=lambda **_: Walk(seeded=seeded), order_enforce=False)
        monkeypatch.setattr(family, "batched_factory", lambda _: None)

    return use


def build(phase: str = "train", **changes: Any) -> LockstepEnvs:
    sections = {"env": {"id": "Walk-v0", "n_envs": E}, **changes}
    plan = block(GYM, GYM_ARMS, only=(0,), **sections)
    return make_environments(plan, CPU, phase=phase, num_envs=E)


def played(envs: LockstepEnvs, choices: torch.Tensor) -> list[StepResult]:
    envs.begin_round(0)
    results = []
    for row in choices:
        [result] = envs.step([row.unsqueeze(1)])
        assert result is not None
        results.append(kept(result))
    return results


def kept(result: StepResult) -> StepResult:
    """Return a result whose observation the next step does not overwrite."""
    seen = result.observation
    return replace(result, observation=replace(seen, features=seen.features.clone()))


def rows(results: list[StepResult], env: int, choices: torch.Tensor) -> list[tuple[Any, ...]]:
    """Transitions of one environment: action, reward, ends and the true next observation."""
    found = []
    for result, chosen in zip(results, choices, strict=True):
        if result.valid[env]:
            seen = result.observation if result.final_observation is None else result.final_observation
            ends = bool(result.terminated[env]), bool(result.truncated[env])
            found.append((int(chosen[env]), float(result.reward[env]), *ends, *seen.features[env].tolist()))
    return found


def episodes(envs: LockstepEnvs) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.values.items() if k != "started_at"} for e in envs.pop_episodes(0)]


def test_disabled_autoreset_with_keyed_seeds_equals_environments_one_by_one(
    one_by_one: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = torch.randint(0, 2, (STEPS, E), generator=torch.Generator().manual_seed(4))
    one_by_one(True)
    single = build()
    expected = played(single, choices)
    monkeypatch.setattr(family, "batched_factory", lambda _: walks(AutoresetMode.DISABLED, seeded=True))
    envs = build()
    for left, right in zip(played(envs, choices), expected, strict=True):
        assert torch.equal(left.observation.features, right.observation.features)
        for name in ("reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(left, name), getattr(right, name))
        assert (left.final_observation is None) == (right.final_observation is None)
        if left.final_observation is not None and right.final_observation is not None:
            assert torch.equal(left.final_observation.features, right.final_observation.features)
    assert episodes(envs) == episodes(single)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_mode_gives_the_transitions_of_environments_one_by_one(
    mode: AutoresetMode, one_by_one: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(False)
    single, sequence = build(), [[1, 1, 0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1, 0, 1, 1], [1, 0] * 5]
    plain = torch.tensor(sequence).T.contiguous()
    expected = played(single, plain)
    monkeypatch.setattr(family, "batched_factory", lambda _: walks(mode))
    envs = build()
    results: list[StepResult] = []
    given: list[list[int]] = []
    at, idle = [0] * E, [False] * E
    envs.begin_round(0)
    while min(at) < len(plain):
        row = [int(plain[min(at[e], len(plain) - 1), e]) for e in range(E)]
        [result] = envs.step([torch.tensor(row).unsqueeze(1)])
        assert result is not None
        assert result.valid.tolist() == [not i for i in idle]
        assert bool((result.terminated | result.valid).all())  # the step that resets ends a policy's memory
        over = (result.terminated | result.truncated) & result.valid
        at = [place + int(valid) for place, valid in zip(at, result.valid.tolist(), strict=True)]
        idle = over.tolist() if mode == AutoresetMode.NEXT_STEP else [False] * E
        results.append(kept(result))
        given.append(row)
    for env in range(E):
        assert rows(results, env, torch.tensor(given))[: len(plain)] == rows(expected, env, plain)
    known = {
        (e["env_id"], e["episode_idx"]): (e["native_return"], e["env_steps"], e["success"]) for e in episodes(envs)
    }
    wanted = {
        (e["env_id"], e["episode_idx"]): (e["native_return"], e["env_steps"], e["success"]) for e in episodes(single)
    }
    assert wanted.items() <= known.items()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_evaluation_plays_one_episode_each_and_cuts_those_that_go_on(
    mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "batched_factory", lambda _: walks(mode, seeded=True))
    envs = build("eval", eval={"episodes": E, "max_steps": 4})
    choices = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 1], [1, 0, 1]])
    results = played(envs, choices)
    found = {e["env_id"]: (e["env_steps"], e["outcome"]) for e in episodes(envs)}
    assert found == {0: (2, "done"), 1: (4, "capped"), 2: (4, "done")}
    assert [r.valid[0].item() for r in results] == [True, True, False, False]


@pytest.mark.parametrize("mode", [*AutoresetMode, "carts"])
def test_an_arm_alone_equals_the_arm_beside_another_and_repeats(
    mode: AutoresetMode | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = carts() if isinstance(mode, str) else walks(mode, seeded=True)
    monkeypatch.setattr(family, "batched_factory", lambda _: factory)
    both, alone = train(block(GYM, GYM_ARMS)), train(block(GYM, GYM_ARMS, only=(0,)))
    assert digests(both, "run-A") == digests(alone, "run-A")
    assert digests(both, "run-A") != digests(both, "run-B")


def test_a_simulator_that_gives_its_state_is_resumed_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    factory = carts()
    monkeypatch.setattr(family, "batched_factory", lambda _: factory)
    plan = block(GYM, GYM_ARMS)
    whole = train(plan)
    first = BlockTrainer(plan, CPU)
    next(first.rounds(0))
    first.save_checkpoint(tmp_path, 1)
    second = BlockTrainer(plan, CPU)
    rest = list(second.rounds(second.load_checkpoint(tmp_path)))
    for run in ("run-A", "run-B"):
        assert digests(rest, run) == digests(whole, run)[1:]
    assert second.envs.limits == {RANDOM_NUMBERS: "hold for each batch: the simulator takes one seed for all"}


def test_a_simulator_without_state_goes_on_with_new_episodes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(family, "batched_factory", lambda _: walks(AutoresetMode.DISABLED, seeded=True))
    plan = block(GYM, GYM_ARMS)
    first = BlockTrainer(plan, CPU)
    next(first.rounds(0))
    first.save_checkpoint(tmp_path, 1)
    second = BlockTrainer(plan, CPU)
    assert len(list(second.rounds(second.load_checkpoint(tmp_path)))) == plan.rounds - 1
    assert second.envs.limits == {RESUMED_EPISODES: "began anew: the simulator does not give its state"}
    assert "every episode begins anew" in capfd.readouterr().err


def test_carts_move_as_gymnasiums_cart_does() -> None:
    sim, env = carts()(num_envs=2), gymnasium.make("CartPole-v1").unwrapped
    sim.reset(seed=7)
    env.reset(seed=1)
    for step in range(20):
        env.state = sim.get_state()["state"][1].double().numpy().copy()  # type: ignore[attr-defined]
        expected, reward, ends, _, _ = env.step(step % 2)
        _, paid, fallen, _, info = sim.step(torch.tensor([0, step % 2]))
        assert np.abs(info["final_obs"][1].numpy() - expected).max() < 1e-6
        assert (float(paid[1]), bool(fallen[1])) == (reward, ends)


def _giving(part: str, value: float) -> Factory:
    """Return a simulator of which environment 1 gives ``value`` as its reward, observation or final observation."""

    class Broken(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            shown, paid, ends, cuts, info = super().step(actions)
            last = info.get("final_obs", [None] * 2)[1]
            if part == "reward":
                paid[1] = value
            elif part == "seen":
                shown[1, 1] = value
            elif last is not None:
                last[1] = value
            return shown, paid, ends, cuts, info

    return lambda num_envs: Broken([Walk] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("value", "why"), [(np.nan, "nan.*, which is not finite"), (-1e300, r"-1e\+300.*, which float32 cannot hold")]
)
@pytest.mark.parametrize(
    ("part", "what"), [("reward", "the reward "), *[(name, "an observation that holds ") for name in ("seen", "final")]]
)
def test_a_number_that_is_none_of_float32_is_the_environments_fault(
    part: str, what: str, value: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "batched_factory", lambda _: _giving(part, value))
    with pytest.raises(EnvironmentFault, match=rf"^environment 'Walk-v0' \(number 1\) returned {what}{why}"):
        played(build(), torch.ones(2, E, dtype=torch.int64))


def _unmarked(num_envs: int) -> Any:
    sim = SyncVectorEnv([Walk] * num_envs)
    sim.metadata = {}
    return sim


def _unbuildable(num_envs: int, **given: Any) -> Any:
    raise KeyError(num_envs)


@pytest.mark.parametrize(
    ("factory", "changes", "told"),
    [
        (_unbuildable, {}, "env.id='Walk-v0' cannot be built: KeyError"),
        (
            _unbuildable,
            {"env": {"id": "Walk-v0", "kwargs": {"wind": 2}}},
            "env.id='Walk-v0' with env.kwargs={'wind': 2} cannot be built: KeyError",
        ),
        (_unmarked, {}, r"autoreset_mode.*NEXT_STEP, SAME_STEP, DISABLED"),
        (walks(AutoresetMode.SAME_STEP), {"net": {"body": "lstm"}}, "get_state and set_state"),
        (walks(AutoresetMode.SAME_STEP), {"env": {"id": "Walk-v0", "max_episode_steps": 3}}, "through env.kwargs"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_remedy(
    factory: Factory, changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "batched_factory", lambda _: factory)
    with pytest.raises(ConfigRefused, match=told):
        build(**changes)


def test_a_worker_announces_that_a_simulator_is_batched() -> None:
    assert capabilities._schema_of(carts())["is_batched"] is True
    assert "is_batched" not in capabilities._schema_of(Walk)


def test_env_check_says_what_becomes_of_a_batched_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    for factory, seeds, resume in (
        (carts(), "one seed for all", "read and set again"),
        (walks(AutoresetMode.DISABLED, seeded=True), "a seed for each environment", "begins anew"),
    ):
        monkeypatch.setattr(check, "batched_factory", lambda _, made=factory: made)
        checked = check.check("walk", {}, steps=20, seconds=5.0)
        assert checked.is_ok, checked
        assert seeds in checked.treatment["seeds"]
        assert resume in checked.treatment["resume"]
