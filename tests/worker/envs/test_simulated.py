"""What a simulator steps is what Gymnasium's own environment steps, bit for bit, whoever steps beside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from torch import Tensor

from lockstep.spec.sections import CLIP
from worker.envs.base import Observation
from worker.envs.family import Order, RunEnv
from worker.envs.faults import EnvironmentFault
from worker.envs.gymnasium.rewards import GymReward, Transition, make_gym_reward
from worker.envs.gymnasium.stepping import simulators
from worker.envs.gymnasium.stepping.env import GymEnvs, make_envs, simulated_envs
from worker.envs.gymnasium.stepping.simulated import SimulatedEnvs

TASKS = ["CartPole-v1", "MountainCar-v0", "Pendulum-v1"]


def _moved(step: Transition) -> tuple[Tensor, dict[str, Tensor]]:
    moved = (step.next_observation - step.observation).abs().sum(1) + step.action[:, 0].float() + step.truncated
    return moved + step.reward, {"moved": moved, "own": step.reward}


#: A reward that looks at both observations, the action and the ends.
_MOVES = GymReward("moves", "1", "", 0.99, _moved)


def order(
    name: str,
    runs: int = 2,
    num_envs: int = 3,
    seed: int = 5,
    reward: GymReward | None = None,
    bounds: str = CLIP,
    **env: Any,
) -> Order:
    config = {
        "env": {"id": name, "rollout_steps": 40, "wrappers": [], "kwargs": {}, **env},
        "eval": {"max_steps": None},
    }
    paid = reward or make_gym_reward("native", {}, gamma=0.99, task=name)
    return Order(
        config=config,
        runs=[RunEnv(f"r{i}", f"r{i}", "ppo", None, 0.99, bounds) for i in range(runs)],
        rewards=[paid] * runs,
        replicate_seed=seed,
        device=torch.device("cpu"),
        num_envs=num_envs,
        data_dir=None,
        alive=lambda: None,
    )


def both(
    asked: Order, phase: str = "train", xeval: Mapping[str, GymReward] | None = None
) -> tuple[GymEnvs, SimulatedEnvs]:
    plain = make_envs(
        asked.config,
        asked.runs,
        replicate_seed=asked.replicate_seed,
        num_envs=asked.num_envs,
        phase=phase,
        rewards=asked.rewards,
        bounds=[run.action_bounds for run in asked.runs],
        xeval=xeval,
    )
    fast = simulated_envs(asked, xeval or {}, phase)
    assert fast is not None
    return plain, fast


def drawn(envs: Any, steps: int, seed: int = 0) -> list[list[Tensor]]:
    draw, head = torch.Generator().manual_seed(seed), envs.heads[0]

    def one() -> Tensor:
        if head.is_gaussian:
            return torch.randn(envs.num_envs, 1, generator=draw) * 2.0
        return torch.randint(head.size, (envs.num_envs, 1), generator=draw)

    return [[one() for _ in range(len(envs._ledgers))] for _ in range(steps)]


def _told(view: Observation | None) -> Any:
    return None if view is None else view.features.numpy().tobytes()


def play(envs: Any, actions: list[list[Tensor]]) -> list[Any]:
    told = []
    for step in actions:
        for result in envs.step(step):
            numbers = (result.reward, result.terminated, result.truncated, result.valid)
            seen = _told(result.observation), _told(result.final_observation)
            told.append((*seen, *(part.numpy().tobytes() for part in numbers)))
    return told


def episodes(envs: Any) -> list[Any]:
    rows = [episode.values for run in range(len(envs._ledgers)) for episode in envs.pop_episodes(run)]
    return [{name: value for name, value in row.items() if name != "started_at"} for row in rows]


def state_of(envs: Any) -> list[Any]:
    states = [envs.state_dict(run) for run in range(len(envs._ledgers))]
    return [{name: (part.dtype, part.tolist()) for name, part in state.items()} for state in states]


def sums(envs: Any) -> list[Any]:
    return [{n: t.tolist() for n, t in envs.reward_sums(run).items()} for run in range(len(envs._ledgers))]


@pytest.mark.parametrize(
    ("name", "env"),
    [
        *((name, {}) for name in TASKS),
        ("CartPole-v1", {"max_episode_steps": 17, "wrappers": ["mask_velocity"]}),
        ("Pendulum-v1", {"max_episode_steps": 3}),
    ],
    ids=lambda part: str(part) or "plain",
)
def test_training_of_a_simulator_equals_that_of_the_task_over_thousands_of_steps(
    name: str, env: dict[str, Any]
) -> None:
    plain, fast = both(order(name, **env))
    actions = drawn(plain, 700)
    for round_index, part in enumerate((actions[:40], actions[40:])):
        begun = [[_told(view) for view, _ in envs.begin_round(round_index)] for envs in (plain, fast)]
        assert begun[0] == begun[1]
        assert play(plain, part) == play(fast, part)
        assert sums(plain) == sums(fast)
        assert episodes(plain) == episodes(fast)
        assert state_of(plain) == state_of(fast)


@pytest.mark.parametrize("name", TASKS)
def test_evaluation_of_a_simulator_equals_that_of_the_task(name: str) -> None:
    other = {"other": make_gym_reward("native", {}, gamma=0.9, task=name)}
    plain, fast = both(order(name, num_envs=7), "eval", other)
    assert plain.steps_per_round == fast.steps_per_round
    for round_index in range(2):
        for envs in (plain, fast):
            envs.begin_round(round_index)
        actions = drawn(plain, plain.steps_per_round, seed=round_index)
        assert play(plain, actions) == play(fast, actions)
        assert (told := episodes(plain)) == episodes(fast)
        assert len(told) == 14


@pytest.mark.parametrize("bounds", ["clip", "tanh", "rescale"])
def test_actions_between_bounds_and_another_reward_are_those_of_the_task(bounds: str) -> None:
    plain, fast = both(order("Pendulum-v1", reward=_MOVES, bounds=bounds))
    actions = drawn(plain, 60)
    for envs in (plain, fast):
        envs.begin_round(0)
    assert play(plain, actions) == play(fast, actions)
    assert sums(plain) == sums(fast)


def test_each_resumes_what_the_other_has_left() -> None:
    asked = order("CartPole-v1")
    plain, fast = both(asked)
    actions = drawn(plain, 90)
    for envs in (plain, fast):
        envs.begin_round(0)
        play(envs, actions[:50])
    again: list[Any] = [*both(asked)]
    for envs, source in zip(again, (fast, plain), strict=True):
        for run in range(2):
            envs.load_state_dict(run, source.state_dict(run))
        envs.begin_round(1)
    plain.begin_round(1)
    expected = play(plain, actions[50:])
    assert [play(envs, actions[50:]) for envs in again] == [expected, expected]


@pytest.mark.parametrize(("before", "steps"), [(0, 100), (10, 60)])
def test_a_resumed_episode_goes_on_for_longer_than_its_replay_had_room_for(before: int, steps: int) -> None:
    asked = order("Pendulum-v1")
    plain, fast = both(asked)
    actions = drawn(plain, 199)
    for envs in (plain, fast):
        envs.begin_round(0)
    play(plain, actions[:steps])
    play(fast, actions[:before])
    for run in range(2):
        fast.load_state_dict(run, plain.state_dict(run))
    for envs in (plain, fast):
        envs.begin_round(1)
    assert play(plain, actions[steps:]) == play(fast, actions[steps:])


def test_an_action_that_is_no_number_ends_both_where_it_was_taken() -> None:
    for envs in both(order("Pendulum-v1")):
        envs.begin_round(0)
        play(envs, drawn(envs, 3))
        actions = drawn(envs, 1)[0]
        actions[1][2] = float("nan")
        with pytest.raises(
            EnvironmentFault,
            match=r"number 2, episode 0\) in step 4 returned .* nan.*, which is not finite",
        ):
            envs.step(actions)


def test_a_replay_that_comes_to_another_observation_is_refused() -> None:
    _, fast = both(order("CartPole-v1"))
    fast.begin_round(0)
    play(fast, drawn(fast, 5))
    state = fast.state_dict(0)
    state["observation"] = state["observation"] + 1.0
    _, fresh = both(order("CartPole-v1"))
    with pytest.raises(RuntimeError, match="the observation is another; it is not reproducible"):
        fresh.load_state_dict(0, state)


def test_blocks_that_step_together_come_and_go_and_equal_themselves_alone() -> None:
    asked = [order("CartPole-v1", seed=seed) for seed in range(3)]
    alone, packed = ([both(one)[1] for one in asked] for _ in range(2))
    actions = [drawn(envs, 150, seed) for seed, envs in enumerate(alone)]
    for held in (*alone, *packed):
        held.begin_round(0)
    for t in range(150):
        # the second is away for some of the steps, the third for others
        here = [i for i in range(3) if not (i == 1 and 20 <= t < 40) and not (i == 2 and t < 30)]
        for i in here:
            packed[i].issue(actions[i][t])
        packed[here[0]].take_with([packed[i] for i in here[1:]])
        for i in here:
            found = packed[i].collect()
            expected = alone[i].step(actions[i][t])
            for one, two in zip(found, expected, strict=True):
                assert one is not None
                assert two is not None
                assert _told(one.observation) == _told(two.observation)
                assert torch.equal(one.terminated, two.terminated)
    for own, other in zip(alone, packed, strict=True):
        assert state_of(own) == state_of(other)
        assert sums(own) == sums(other)
        assert episodes(own) == episodes(other)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_a_step_that_blocks_take_whole_is_that_of_each_run(name: str) -> None:
    asked = [order(name, seed=seed, max_episode_steps=13) for seed in range(2)]
    asked[1] = order(name, seed=1, max_episode_steps=13, bounds="tanh")
    alone, packed = ([both(one)[1] for one in asked] for _ in range(2))
    actions = [drawn(envs, 60, seed) for seed, envs in enumerate(alone)]
    for held in (*alone, *packed):
        held.begin_round(0)
    assert all(envs.is_whole for envs in packed)
    entered: list[int] = []

    def guard(index: int) -> nullcontext[None]:
        entered.append(index)
        return nullcontext()

    for t in range(60):
        taken = packed[0].take_all(packed[1:], torch.stack(actions[0][t] + actions[1][t]), guard)
        expected = [result for i in range(2) for result in alone[i].step(actions[i][t])]
        for run, result in enumerate(expected):
            assert result is not None
            final = result.final_observation
            assert np.array_equal(taken.features[run], result.observation.features)
            for part in ("terminated", "truncated"):
                assert np.array_equal(getattr(taken, part)[run], getattr(result, part))
            assert np.array_equal(taken.rewards[run], result.reward)
            assert (run in taken.finals) == bool(result.truncated.any())
            if run in taken.finals:
                assert final is not None
                assert torch.equal(taken.finals[run], final.features)
    assert set(entered) == {0, 1}
    for own, other in zip(alone, packed, strict=True):
        assert state_of(own) == state_of(other)
        assert sums(own) == sums(other)
        assert episodes(own) == episodes(other)


def test_observations_that_are_not_finite_end_their_block_alone() -> None:
    packed = [both(order("CartPole-v1", seed=seed))[1] for seed in range(2)]
    for envs in packed:
        envs.begin_round(0)
    faults: dict[int, str] = {}

    @contextmanager
    def kept(index: int) -> Iterator[None]:
        try:
            yield
        except EnvironmentFault as error:
            faults[index] = str(error)

    actions = torch.zeros(4, 3, 1, dtype=torch.int64)
    packed[0].take_all(packed[1:], actions, kept)
    assert faults == {}
    packed[1].rows.state[1, 2] = math.inf
    packed[0].take_all(packed[1:], actions, kept)
    assert list(faults) == [1]
    assert "number 2, episode 0) in step 2 returned an observation that holds" in faults[1]


def test_a_run_that_has_failed_is_not_stepped_and_the_others_are() -> None:
    plain, fast = both(order("Pendulum-v1"))
    actions = drawn(plain, 20)
    for envs in (plain, fast):
        envs.begin_round(0)
        play(envs, actions[:10])
    for t in range(10, 20):
        [_, one], [none, two] = (envs.step([None, actions[t][1]]) for envs in (plain, fast))
        assert none is None
        assert one is not None
        assert two is not None
        assert _told(one.observation) == _told(two.observation)
    assert state_of(plain) == state_of(fast)


def test_code_that_is_not_the_known_one_is_stepped_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulated_envs(order("CartPole-v1", kwargs={"sutton_barto_reward": False}), {}, "train") is None
    assert simulated_envs(order("CartPole-v1", processes=2), {}, "train") is None
    assert simulated_envs(order("Acrobot-v1"), {}, "train") is None

    class Other(CartPoleEnv):
        """The same with a name of its own."""

    assert simulators.simulator_of(TimeLimit(CartPoleEnv(), 9), {}) is not None
    assert simulators.simulator_of(TimeLimit(Other(), 9), {}) is None
    own: Any = CartPoleEnv.step

    def step(self: CartPoleEnv, action: Any) -> Any:
        return own(self, action)

    monkeypatch.setattr(CartPoleEnv, "step", step)
    assert simulated_envs(order("CartPole-v1"), {}, "train") is None


def test_a_task_of_a_package_is_not_built_to_see_whether_it_has_a_simulator() -> None:
    class Counted(CartPoleEnv):
        """Counts how often it is built, as one does that holds a licence or a port."""

        built = 0

        def __init__(self) -> None:
            Counted.built += 1
            super().__init__()

    build: Any = Counted
    gymnasium.register("Counted-v0", build)
    try:
        assert simulated_envs(order("Counted-v0"), {}, "train") is None
        assert Counted.built == 0
    finally:
        del gymnasium.registry["Counted-v0"]


def test_a_method_that_is_wrapped_or_is_no_function_is_stepped_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = CartPoleEnv.step
    assert simulators.simulator_of(CartPoleEnv(), {}) is not None

    @functools.wraps(own)
    def step(self: CartPoleEnv, action: Any) -> Any:
        return own(self, 0)

    for method in (step, functools.partial(own)):
        monkeypatch.setattr(CartPoleEnv, "step", method)
        assert simulators.simulator_of(CartPoleEnv(), {}) is None


def test_a_choice_that_is_none_is_refused() -> None:
    _, fast = both(order("CartPole-v1"))
    fast.begin_round(0)
    with pytest.raises(ValueError, match="outside its mask"):
        fast.step([torch.full((3, 1), -1)] * 2)


@pytest.mark.parametrize("change", [{"gravity": 20.0}, {"length": 1.0}, {"step": None}])
def test_a_task_that_a_package_has_changed_is_stepped_by_itself(change: dict[str, Any]) -> None:
    env = CartPoleEnv()
    vars(env).update(change)
    assert simulators.simulator_of(TimeLimit(env, 9), {}) is None
    assert simulators.simulator_of(env, {}) is None


def test_a_limit_that_a_package_has_changed_is_stepped_by_itself() -> None:
    limited = TimeLimit(CartPoleEnv(), 9)
    vars(limited)["step"] = None
    assert simulators.simulator_of(limited, {}) is None


def test_a_task_that_has_begun_is_as_its_class_makes_it() -> None:
    for task in ("CartPole-v1", "MountainCar-v0", "Pendulum-v1"):
        env = gymnasium.make(task).unwrapped
        env.reset(seed=3)
        env.step(env.action_space.sample())
        assert simulators.simulator_of(env, {}) is not None
