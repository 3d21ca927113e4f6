"""What a reward function does wrong in training is one sentence that names mode, arm, episode and remedy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.envs.morph.factories import CPU, SEED, row, tiny
from worker.envs.family import RunEnv
from worker.envs.faults import EnvironmentFault
from worker.envs.gymnasium.rewards import GymReward, Transition
from worker.envs.gymnasium.stepping.env import GymEnvs, make_envs
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.episode.shared_data import Setup
from worker.envs.morph.rewards.context import RewardContext, RewardResult
from worker.envs.morph.rewards.registry import PackageReward, make_reward

STEPS = 8


def mode(returns: Callable[[Any], Any]) -> GymReward:
    return GymReward("mine", "1", "", 0.99, returns)


def parts(value: Any) -> Any:
    return value, {"x": value}


def run_of(arm: str) -> RunEnv:
    return RunEnv(f"run{arm}", arm, "ppo", None, 0.99)


def play(reward: GymReward, *, steps: int = STEPS, phase: str = "train", **scored: GymReward) -> GymEnvs:
    """Play CartPole, with episodes of three steps, in two runs of which arm B has the reward."""
    config = {"env": {"id": "CartPole-v1", "rollout_steps": steps, "max_episode_steps": 3}}
    native = GymReward("native", "environment", "", 0.99, lambda step: parts(step.reward))
    envs = make_envs(
        config,
        [run_of("A"), run_of("B")],
        replicate_seed=5,
        num_envs=2,
        phase=phase,
        rewards=[native, reward],
        xeval=scored,
    )
    envs.begin_round(0)
    for _ in range(steps):
        envs.step([torch.zeros(2, 1, dtype=torch.int64)] * 2)
    return envs


def late(step: Transition) -> torch.Tensor:
    """NaN at the end of an episode of environment 1, which is reached in the third step."""
    ended = step.truncated & torch.tensor([False, True])
    return torch.where(ended, torch.nan, step.reward)


FAULTS: dict[str, tuple[Callable[[Transition], Any], str]] = {
    "nan": (lambda step: parts(late(step)), ": the reward is nan in environment 1, episode 0; it must be finite"),
    "huge": (
        lambda step: parts(step.reward.double() * 1e300),
        ": the reward is 1e+300 in environment 0, episode 0, which float32 cannot hold (it ends at 3.4e+38)",
    ),
    "shape": (lambda step: parts(step.reward[:1]), " in episode 0: the reward has the shape (1,), not (2,); return"),
    "list": (lambda step: parts(step.reward.tolist()), " in episode 0: the reward is of type list, not a tensor [2]"),
    "int": (
        lambda _step: parts(0),
        " in episode 0: the reward is of type int, not a tensor [2]; compute it from the tensors it is given, or use "
        "torch.full((2,), 0)",
    ),
    "device": (lambda step: parts(step.reward.to("meta")), " in episode 0: the reward lies on meta, not on the CPU"),
    "component": (
        lambda step: (step.reward, {"y": 1.0}),
        " in episode 0: component 'y' is of type float, not a tensor",
    ),
    "raises": (
        lambda step: step.info["distance"],
        " in episode 0 raised KeyError: 'distance'; correct it, and try it with `lockstep reward check mine`",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_reward_that_breaks_the_contract_ends_its_run_with_mode_arm_episode_and_remedy(kind: str) -> None:
    returns, told = FAULTS[kind]
    with pytest.raises(EnvironmentFault) as fault:
        play(mode(returns))
    assert str(fault.value).startswith(f"reward mode 'mine' of arm 'B'{told}")


def test_a_reward_that_only_scores_an_arm_is_named_as_such() -> None:
    good = mode(lambda step: parts(step.reward))
    other = GymReward("other", "1", "", 0.99, lambda step: parts(late(step)))
    with pytest.raises(EnvironmentFault, match=r"reward mode 'other' \(it scores arm 'A' too\): the reward is nan"):
        play(good, phase="eval", other=other)


def test_whole_numbers_doubles_and_what_needs_gradients_are_paid() -> None:
    weight = torch.ones(1, requires_grad=True)
    for factor in (torch.ones(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64), weight):

        def whole(step: Transition, factor: torch.Tensor = factor) -> Any:
            return parts(factor.expand(len(step.reward)))

        envs = play(mode(whole))
        assert envs.reward_sums(1)["x"].tolist() == [float(STEPS)] * 2
        [paid] = [result.reward for result in envs.step([None, torch.zeros(2, 1, dtype=torch.int64)]) if result]
        assert (paid.dtype, paid.requires_grad) == (torch.float32, False)


def test_a_reward_that_is_far_slower_than_its_environments_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow(step: Transition) -> Any:
        now[0] += 0.045
        return parts(step.reward)

    play(mode(slow), steps=28)
    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith("arm 'B' has spent 1.0 s in reward mine and 0.0 s in its environments: compute on whole ")
    assert told.endswith("`lockstep reward check mine` times it")


MORPH: dict[str, tuple[Callable[[RewardContext], Any], str]] = {
    "nan": (
        lambda ctx: RewardResult(ctx.post.cf, {"x": ctx.post.cf}, {}),
        ": the reward is nan in environment 0, episode 3; it must be finite",
    ),
    "list": (
        lambda _ctx: RewardResult([0.0], {}, {}),  # type: ignore[arg-type]
        " in episode 3: the reward is of type list, not a tensor [1]",
    ),
    "pair": (
        lambda ctx: (ctx.post.accuracy, {}),
        " returned a tuple; return RewardResult(reward, components, ledgers)",
    ),
    "raises": (lambda ctx: ctx.gone, " in episode 3 raised AttributeError: 'RewardContext' object has no attribute"),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("kind", MORPH)
def test_a_reward_of_morphogenesis_is_held_to_the_same(kind: str) -> None:
    returns, told = MORPH[kind]
    reward = PackageReward("mine", "1", "", -10.0, 0.99, returns)
    envs = MorphEnvs(Setup(tiny(), SEED, CPU, 1, "train"), [run_of("B")], [reward], {})
    envs.begin_round(3)
    with pytest.raises(EnvironmentFault) as fault:
        envs.step([torch.tensor([row(envs)])])
    assert str(fault.value).startswith(f"reward mode 'mine' of arm 'B'{told}")


def test_a_reward_of_morphogenesis_is_told_plain_tensors_without_gradients_and_its_own_ledgers() -> None:
    weight, slopes, handed, returned = torch.ones(1, requires_grad=True), [], [], []

    def learns(ctx: RewardContext) -> RewardResult:
        assert torch.is_inference_mode_enabled()
        with torch.inference_mode(mode=False), torch.enable_grad():
            slopes.append(torch.autograd.grad((weight * ctx.post.accuracy).sum(), weight))
        handed.append(ctx.ledgers)
        returned.append({"t": ctx.t})
        return RewardResult(weight * ctx.post.accuracy, {}, returned[-1])

    reward = PackageReward("mine", "1", "", -10.0, 0.99, learns)
    envs = MorphEnvs(Setup(tiny(), SEED, CPU, 1, "train"), [run_of("B")], [reward], {})
    envs.begin_round(3)
    for _ in range(3):
        [result] = envs.step([torch.tensor([row(envs)])])
        assert result is not None
        assert not result.reward.requires_grad
    assert len(slopes) == 3
    assert handed == [{}, *returned[:2]]


def test_a_built_in_mode_whose_constants_leave_float32_is_refused_with_arm_and_episode() -> None:
    reward = make_reward("sparse", {"sparse_scale": 1e39}, gamma=0.99, task="digits_tiny")
    envs = MorphEnvs(Setup(tiny(), SEED, CPU, 1, "train"), [run_of("B")], [reward], {})
    envs.begin_round(3)
    with pytest.raises(EnvironmentFault) as fault:
        envs.step([torch.tensor([row(envs)])])
    told = "reward mode 'sparse' of arm 'B': the reward is nan in environment 0, episode 3; it must be finite: "
    assert str(fault.value).startswith(told)
