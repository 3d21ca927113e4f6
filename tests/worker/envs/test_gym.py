"""The Gymnasium adapter: true final observations, keyed resets, replay, spaces (training.md 1.1, 1.8)."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.keys import derive
from tests.worker.envs.kit import LENGTH, Kit
from worker.envs.gymnasium import build
from worker.envs.gymnasium.actions import UnsupportedSpace
from worker.envs.gymnasium.stepping.env import GymEnvs, make_envs


class _Pair(gymnasium.Env[Any, Any]):
    """Two-headed: pays 1 when the two choices agree."""

    observation_space = spaces.Box(-1.0, 1.0, (2, 2))
    action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - of the interface
        super().reset(seed=seed)
        return np.zeros((2, 2), dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones((2, 2), dtype=np.float32), float(action[0] == action[1]), False, False, {}


class _Text(_Pair):
    observation_space = spaces.Text(3)  # type: ignore[assignment]


gymnasium.register("Text-v0", entry_point=lambda **_: _Text())
gymnasium.register("Pair-v0", entry_point=lambda **_: _Pair(), max_episode_steps=6)


def config(name: str = "CartPole-v1", **env: Any) -> dict[str, Any]:
    return {"env": {"id": name, "rollout_steps": 30, "wrappers": [], "kwargs": {}, **env}}


def envs_of(num_envs: int = 2, phase: str = "train", runs: int = 1, **env: Any) -> GymEnvs:
    name = env.pop("name", "CartPole-v1")
    return make_envs(config(name, **env), [None] * runs, replicate_seed=5, num_envs=num_envs, phase=phase)


def alternate(envs: GymEnvs, steps: int, runs: int = 1) -> list[Any]:
    actions = [torch.full((envs.num_envs, 1), t % 2) for t in range(steps)]
    return [envs.step([a] * runs) for a in actions]


def test_truncation_delivers_the_true_final_observation_and_the_reset_one() -> None:
    envs = envs_of(1, name="Acrobot-v1", kwargs={"max_episode_steps": 4})
    envs.begin_round(0)
    plain = gymnasium.make("Acrobot-v1", max_episode_steps=4)
    plain.reset(seed=derive(5, "env_reset", env=0, episode=0) % 2**32)
    for t in range(4):
        expected, *_ = plain.step(t % 2)
        [result] = envs.step([torch.full((1, 1), t % 2)])
    assert result is not None
    assert bool(result.truncated[0])
    assert not bool(result.terminated[0])
    assert result.final_observation is not None
    assert np.array_equal(result.final_observation.features[0].numpy(), expected)
    fresh, _ = plain.reset(seed=derive(5, "env_reset", env=0, episode=1) % 2**32)
    assert np.array_equal(result.observation.features[0].numpy(), fresh)
    [episode] = envs.pop_episodes(0)
    assert episode.values["outcome"] == "horizon"
    assert episode.values["env_steps"] == 4
    assert envs.pop_episodes(0) == []


def test_truncation_delivers_the_true_final_image_and_whether_it_succeeded() -> None:
    envs = envs_of(1, name="Kit-v0")
    envs.begin_round(0)
    plain, action = Kit(), {"grip": 1, "move": np.array([0.25, -0.5], np.float32)}
    plain.reset(seed=derive(5, "env_reset", env=0, episode=0) % 2**32)
    for _ in range(LENGTH):
        shown, *_, info = plain.step(action)
        [result] = envs.step([torch.tensor([[1.0, 0.25, -0.5]])])
    assert result is not None
    assert result.final_observation is not None
    fresh, _ = plain.reset(seed=derive(5, "env_reset", env=0, episode=1) % 2**32)
    for view, camera in ((result.final_observation, shown["camera"]), (result.observation, fresh["camera"])):
        assert view.pixels is not None
        assert np.array_equal(view.pixels.numpy().reshape(3, 12, 10), camera.transpose(2, 0, 1))
    [episode] = envs.pop_episodes(0)
    assert episode.values["success"] == float(info["is_success"])


def test_a_time_limit_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="are the same limit"):
        envs_of(1, name="Acrobot-v1", kwargs={"max_episode_steps": 4}, max_episode_steps=4)


@pytest.mark.parametrize("name", ["Acrobot-v1", "Unlimited-v0"])
def test_a_time_limit_of_the_spec_cuts_registered_tasks_and_those_of_packages(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("Unlimited-v0", "tests.worker.envs.kit:unlimited", build.ENTRY_POINTS)
    monkeypatch.setattr(build, "entry_points", lambda name, **_: [point] if name == point.name else [])
    envs = envs_of(1, name=name, max_episode_steps=3)
    envs.begin_round(0)
    idle = torch.zeros(1, envs.heads[0].columns, dtype=torch.int64)
    ends = [bool(result.truncated[0]) for [result] in (envs.step([idle]) for _ in range(6)) if result is not None]
    assert ends == [False, False, True, False, False, True]
    assert envs_of(1, name=name, phase="eval", max_episode_steps=3).steps_per_round == 3


def test_an_end_in_one_environment_leaves_the_next_observation_of_the_others_true() -> None:
    envs = envs_of(3, name="Acrobot-v1", kwargs={"max_episode_steps": 4})
    envs.begin_round(0)
    envs.step([torch.zeros(3, 1, dtype=torch.int64)])
    lane = envs._lanes[0][0].env
    lane.reset(seed=1)  # restarts the limit of the first environment: the others end before it
    for t in range(4):
        [result] = envs.step([torch.full((3, 1), t % 2)])
        assert result is not None
        if result.final_observation is not None:
            ended = result.truncated | result.terminated
            assert ended.tolist() == ([False, True, True] if t == 2 else [True, False, False])
            others = result.final_observation.features[~ended]
            assert torch.equal(others, result.observation.features[~ended])


def test_an_environment_depends_neither_on_their_number_nor_on_other_runs() -> None:
    few, many = envs_of(2), envs_of(5, runs=2)
    few.begin_round(0)
    many.begin_round(0)
    for one, two in zip(alternate(few, 60), alternate(many, 60, runs=2), strict=True):
        assert torch.equal(one[0].observation.features, two[1].observation.features[:2])
        assert torch.equal(one[0].terminated, two[1].terminated[:2])


def test_rounds_carry_on_and_sums_restart() -> None:
    envs = envs_of(2)
    envs.begin_round(0)
    results = alternate(envs, 7)
    assert envs.reward_sums(0)["native"].tolist() == [7.0, 7.0]
    [(observation, masks)] = envs.begin_round(1)
    assert torch.equal(observation.features, results[-1][0].observation.features)
    assert bool(masks["action"].all())
    assert envs.reward_sums(0)["native"].tolist() == [0.0, 0.0]


def test_resume_replays_the_running_episodes() -> None:
    envs, other = envs_of(3), envs_of(3)
    envs.begin_round(0)
    alternate(envs, 40)
    other.load_state_dict(0, envs.state_dict(0))
    for one, two in zip(alternate(envs, 30), alternate(other, 30), strict=True):
        assert torch.equal(one[0].observation.features, two[0].observation.features)
        assert torch.equal(one[0].reward, two[0].reward)
    wrong = envs.state_dict(0)
    wrong["observation"] = wrong["observation"] + 1
    with pytest.raises(RuntimeError, match="not reproducible"):
        other.load_state_dict(0, wrong)


def test_evaluation_plays_each_episode_once_on_its_own_streams() -> None:
    envs = envs_of(3, phase="eval")
    first = [envs.begin_round(r)[0][0].features.clone() for r in (0, 1)]
    assert torch.equal(first[0], first[1])
    train = envs_of(3)
    assert not torch.equal(first[0], train.begin_round(0)[0][0].features)
    results = alternate(envs, 120)
    over = torch.stack([r[0].valid for r in results])
    assert not bool(over[-1].any())
    assert sorted(e.env for e in envs.pop_episodes(0)) == [0, 1, 2]
    assert envs.steps_per_round == 500


def test_mask_velocity_zeroes_velocities_and_refuses_unknown_environments() -> None:
    envs = envs_of(2, wrappers=["mask_velocity"])
    envs.begin_round(0)
    features = alternate(envs, 5)[-1][0].observation.features
    assert features[:, [1, 3]].abs().sum() == 0
    assert features[:, [0, 2]].abs().sum() > 0
    with pytest.raises(ValueError, match="mask_velocity knows"):
        envs_of(1, name="Pair-v0", wrappers=["mask_velocity"])
    with pytest.raises(ValueError, match=r"known are \['mask_velocity', 'atari'\]"):
        envs_of(1, wrappers=["frame_stack"])


def test_multi_discrete_gives_one_head_per_component_and_flat_observations() -> None:
    envs = envs_of(2, name="Pair-v0")
    assert [(h.name, h.size) for h in envs.heads] == [("action_0", 3), ("action_1", 2)]
    assert envs.obs_spec.num_features == 4
    envs.begin_round(0)
    [result] = envs.step([torch.tensor([[1, 1], [2, 1]])])
    assert result is not None
    assert result.reward.tolist() == [1.0, 0.0]
    other = envs_of(2, name="Pair-v0")
    other.load_state_dict(0, envs.state_dict(0))


def test_other_spaces_are_refused_with_the_space_printed() -> None:
    with pytest.raises(UnsupportedSpace, match=r"observation space Text\(.* a Text has no fixed number"):
        envs_of(1, name="Text-v0")
    with pytest.raises(ValueError, match=r"env.id='CartPole-v7'"):
        envs_of(1, name="CartPole-v7")


def test_an_action_outside_its_mask_raises() -> None:
    envs = envs_of(1)
    envs.begin_round(0)
    with pytest.raises(ValueError, match="outside its mask"):
        envs.step([torch.tensor([[-1]])])


@pytest.mark.parametrize(
    "member", [0, 1, -1, 2, np.int64(0), np.int64(1), np.int64(2), np.int64(-1), np.uint64(1), 1.0, np.array(1), "1"]
)
def test_the_space_that_steps_ask_has_the_members_of_gymnasiums_own(member: Any) -> None:
    plain = gymnasium.make("CartPole-v1").action_space
    lane = envs_of(1)._lanes[0][0].env
    assert type(lane.unwrapped.action_space) is not type(plain)
    assert lane.action_space == plain
    assert lane.action_space.contains(member) == plain.contains(member)


def test_an_id_that_names_a_module_to_import_is_refused() -> None:
    with pytest.raises(ValueError, match="antigravity:CartPole-v1"):
        envs_of(1, name="antigravity:CartPole-v1")
    assert "antigravity" not in sys.modules


def test_a_name_without_a_version_is_its_newest() -> None:
    assert build.versioned("CartPole") == "CartPole-v1"
    assert build.versioned("CartPole-v0") == "CartPole-v0"
    assert build.versioned("nothing") == "nothing"
