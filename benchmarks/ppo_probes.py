"""Probe environments: tasks whose answer is known, each of which fails for one kind of PPO bug (training.md 8.4).

    python -m benchmarks.ppo_probes [--seeds 5] [--only NAME]

Every probe is a few vectorised lines, trained by the same learner, rollout and update as any run.
Prints one line per probe and RNG seed and exits with 1 if one misses its bar.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.sections import Net, ObsNorm, Ppo
from worker.envs.base import HeadSpec, Masks, Observation, StepResult
from worker.rl.algorithms.ppo import prepare, update
from worker.rl.config import LearnerConfig
from worker.rl.heads import log_probabilities
from worker.rl.learner import Learner, ObsLayout, Streams, build_learner
from worker.rl.nets import InputLayout
from worker.rl.rollout import Rollout

#: Environments of every probe.
E = 32


@dataclass
class Episodes:
    """What a probe knows of its E running episodes."""

    step: Tensor
    cue: Tensor


@dataclass(frozen=True)
class Probe:
    """A vectorised task.

    Attributes:
        length: steps of an episode.
        observe: episodes to features [E, O].
        pay: (episodes, actions [E, H]) to reward [E].
        heads: action heads.
        truncates: whether the end is a cut instead of a real end.
        masks: legality by head, for all steps; full when absent.
    """

    length: int
    observe: Callable[[Episodes], Tensor]
    pay: Callable[[Episodes, Tensor], Tensor]
    heads: tuple[HeadSpec, ...] = (HeadSpec("action", 2),)
    truncates: bool = False
    masks: Mapping[str, Tensor] | None = None

    @property
    def steps(self) -> int:
        """Steps of a rollout."""
        return max(4, 2 * self.length)


class ProbeEnvs:
    """E episodes of a probe with same-step reset."""

    def __init__(self, probe: Probe, seed: int) -> None:
        self.probe, self.rng = probe, np.random.default_rng(seed)
        self.now = Episodes(torch.zeros(E), self._cues())
        full = {h.name: torch.ones(E, h.size, dtype=torch.bool) for h in probe.heads}
        self.masks: Masks = full if probe.masks is None else probe.masks

    def observation(self) -> Observation:
        """Return what the policy sees."""
        return Observation(self.probe.observe(self.now), torch.zeros(E, 0, dtype=torch.int64))

    def step(self, actions: Tensor) -> StepResult:
        """Pay, move on and reset where an episode ended."""
        reward = self.probe.pay(self.now, actions)
        self.now.step = self.now.step + 1
        ended = self.now.step >= self.probe.length
        final = self.observation()
        self.now = Episodes(torch.where(ended, 0.0, self.now.step), torch.where(ended, self._cues(), self.now.cue))
        off = torch.zeros_like(ended)
        terminated, truncated = (off, ended) if self.probe.truncates else (ended, off)
        valid = torch.ones_like(ended)
        return StepResult(
            observation=self.observation(),
            masks=self.masks,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_observation=final,
        )

    def _cues(self) -> Tensor:
        return torch.from_numpy(self.rng.choice([-1.0, 1.0], E).astype(np.float32))


def config(body: str, gamma: float, lr: float) -> LearnerConfig:
    ppo = Ppo.model_validate(
        {
            "lr": lr,
            "lr_end_frac": 0.05,
            "gamma": gamma,
            "lambda": 0.95,
            "minibatches": 2,
            "target_kl": None,
            "entropy_coef_start": 0.01,
            "entropy_coef_end": 0.0,
            "entropy_anneal_rounds": 20,
            "adv_norm": "rollout" if body == "lstm" else "minibatch",
            "adv_std_floor": 0.0,
        }
    )
    net = Net.model_validate({"body": body, "hidden": 32, "lstm_hidden": 32})
    return LearnerConfig(ppo, net, ObsNorm(enabled=False), "popart", "none", "fp32", 1, gamma)


def train(probe: Probe, seed: int, rounds: int, *, body: str = "mlp", gamma: float = 0.9, lr: float = 5e-3) -> Learner:
    """Train a learner on a probe and return it."""
    cfg = config(body, gamma, lr)
    envs, streams = ProbeEnvs(probe, seed), Streams(seed)
    num_features = envs.observation().features.shape[1]
    flags = torch.ones(num_features, dtype=torch.bool)
    layout = ObsLayout(InputLayout(num_features, 0, 0, 4), flags, ~flags)
    learner = build_learner(cfg, layout, probe.heads, streams, num_envs=E, device=torch.device("cpu"))
    T = probe.steps
    rollout = Rollout(T, learner.heads, None)
    for r in range(rounds):
        noise = streams.action_noise(r, (T, E, len(probe.heads)))
        rollout.begin(envs.observation(), envs.masks, learner.carry)
        for t in range(T):
            result = envs.step(rollout.act(learner.net, t, noise[t], None))
            rollout.see(t, result)
            rollout.pay(t, result.reward)
        prepared = prepare(learner, rollout, 0.01 * max(0.0, 1 - 2 * r / rounds), None)
        rate = cfg.ppo.lr * (1 - 0.95 * r / rounds)
        update(learner, prepared, rate, streams.generator("minibatch_order", round=r))
        learner.carry = rollout.state
    return learner


@torch.no_grad()
def values(learner: Learner, *features: Sequence[float]) -> list[float]:
    """Return V at the given observations, in reward units."""
    x = torch.tensor(features)
    raw = learner.net.step_values(x, torch.zeros(len(x), 0, dtype=torch.int64), learner.net.initial_state(len(x)))
    if learner.popart is not None:
        raw = learner.popart.denormalise(raw)
    return [float(v) for v in raw]


@torch.no_grad()
def probabilities(learner: Learner, features: Sequence[float], masks: Masks | None = None) -> list[list[float]]:
    """Return the distribution of every head at one observation."""
    x = torch.tensor([features])
    logits, _ = learner.net.step(x, torch.zeros(1, 0, dtype=torch.int64), learner.net.initial_state(1))
    result = []
    for i, head in enumerate(learner.heads.specs):
        mask = torch.ones(1, head.size, dtype=torch.bool) if masks is None else masks[head.name][:1]
        result.append(log_probabilities(logits[:, i, : head.size], mask, None).exp()[0].tolist())
    return result


@torch.no_grad()
def success(learner: Learner, probe: Probe, seed: int) -> float:
    """Return the mean reward at episode ends of the sampling policy."""
    envs, streams = ProbeEnvs(probe, seed), Streams(seed + 1)
    T = 4 * probe.length
    rollout, paid, ends = Rollout(T, learner.heads, None), 0.0, 0
    noise = streams.action_noise(0, (T, E, len(probe.heads)))
    rollout.begin(envs.observation(), envs.masks, learner.net.initial_state(E))
    for t in range(T):
        result = envs.step(rollout.act(learner.net, t, noise[t], None))
        rollout.see(t, result)
        rollout.pay(t, result.reward)
        ended = result.terminated | result.truncated
        paid, ends = paid + float(result.reward[ended].sum()), ends + int(ended.sum())
    return paid / ends


def near(value: float, target: float, within: float) -> tuple[bool, str]:
    return abs(value - target) <= within, f"{value:.3f} (wanted {target:.3f} +- {within})"


def above(value: float, bar: float) -> tuple[bool, str]:
    return value > bar, f"{value:.3f} (wanted > {bar})"


def _constant(e: Episodes) -> Tensor:
    return torch.zeros(E, 1) + 0.0 * e.step.unsqueeze(1)


def _cue(e: Episodes) -> Tensor:
    return e.cue.unsqueeze(1)


def _clock(e: Episodes) -> Tensor:
    return e.step.unsqueeze(1)


def _cue_first(e: Episodes) -> Tensor:
    return torch.stack([torch.where(e.step == 0, e.cue, 0.0), (e.step == MEMORY - 1).float()], dim=1)


def _one(e: Episodes, _actions: Tensor) -> Tensor:
    return torch.ones_like(e.step)


def _matches(e: Episodes, actions: Tensor) -> Tensor:
    return (actions[:, 0] == (e.cue > 0)).float()


#: Steps between the cue and the pay, inclusive.
MEMORY = 9
Check = Callable[[int], tuple[bool, str]]


def constant_reward(seed: int) -> tuple[bool, str]:
    [v] = values(train(Probe(1, _constant, _one), seed, 10), [0.0])
    return near(v, 1.0, 0.05)


def observation_dependent(seed: int) -> tuple[bool, str]:
    low, high = values(train(Probe(1, _cue, lambda e, _a: e.cue), seed, 25), [-1.0], [1.0])
    ok_low, told_low = near(low, -1.0, 0.1)
    ok_high, told_high = near(high, 1.0, 0.1)
    return ok_low and ok_high, f"{told_low}, {told_high}"


def two_steps(seed: int) -> tuple[bool, str]:
    probe = Probe(2, _clock, lambda e, _a: (e.step == 1).float())
    first, second = values(train(probe, seed, 30), [0.0], [1.0])
    ok_first, told_first = near(first, 0.9, 0.05)
    ok_second, told_second = near(second, 1.0, 0.05)
    return ok_first and ok_second, f"{told_first}, {told_second}"


def action_dependent(seed: int) -> tuple[bool, str]:
    probe = Probe(1, _constant, lambda _e, a: 2.0 * a[:, 0] - 1.0)
    return above(probabilities(train(probe, seed, 25), [0.0])[0][1], 0.95)


def action_by_observation(seed: int) -> tuple[bool, str]:
    learner = train(Probe(1, _cue, _matches), seed, 40)
    right = min(probabilities(learner, [1.0])[0][1], probabilities(learner, [-1.0])[0][0])
    ok, told = above(right, 0.95)
    ok_value, told_value = near(values(learner, [1.0])[0], 1.0, 0.1)
    return ok and ok_value, f"{told}, V {told_value}"


def _memory(body: str, seed: int, rounds: int, lr: float) -> float:
    pay = Probe(MEMORY, _cue_first, lambda e, a: (e.step == MEMORY - 1) * _matches(e, a))
    return success(train(pay, seed, rounds, body=body, gamma=0.95, lr=lr), pay, seed + 100)


def memory_lstm(seed: int) -> tuple[bool, str]:
    # at 8e-3 whether a seed gets there hangs on rounding, and that on the processor
    return above(_memory("lstm", seed, 120, 3e-3), 0.95)


def memory_mlp(seed: int) -> tuple[bool, str]:
    return near(_memory("mlp", seed, 20, 8e-3), 0.5, 0.1)


def truncated(seed: int) -> tuple[bool, str]:
    [v] = values(train(Probe(10, _constant, _one, truncates=True), seed, 30, gamma=0.9), [0.0])
    return near(v, 10.0, 0.5)


def terminated(seed: int) -> tuple[bool, str]:
    first, last = values(train(Probe(10, lambda e: e.step.unsqueeze(1) / 10, _one), seed, 80, gamma=0.9), [0.0], [0.9])
    finite = (1 - 0.9**10) / 0.1
    ok_first, told_first = near(first, finite, 0.35)
    ok_last, told_last = near(last, 1.0, 0.35)
    return ok_first and ok_last, f"{told_first}, {told_last}"


def masked_bandit(seed: int) -> tuple[bool, str]:
    masks = {"action": torch.tensor([[False, True, True, False]]).expand(E, -1)}
    probe = Probe(1, _constant, lambda _e, a: a[:, 0].float(), (HeadSpec("action", 4),), masks=masks)
    [p] = probabilities(train(probe, seed, 30), [0.0], masks)
    return p[2] > 0.95 and p[0] == p[3] == 0.0, f"p = {[round(x, 3) for x in p]}"


def two_head_bandit(seed: int) -> tuple[bool, str]:
    heads = (HeadSpec("left", 3), HeadSpec("right", 3))
    probe = Probe(1, _constant, lambda _e, a: ((a[:, 0] == 2) & (a[:, 1] == 0)).float(), heads)
    left, right = probabilities(train(probe, seed, 40), [0.0])
    return above(left[2] * right[0], 0.95)


PROBES: Mapping[str, Check] = {
    "constant_reward": constant_reward,
    "observation_dependent": observation_dependent,
    "two_steps": two_steps,
    "action_dependent": action_dependent,
    "action_by_observation": action_by_observation,
    "memory_lstm": memory_lstm,
    "memory_mlp": memory_mlp,
    "truncated": truncated,
    "terminated": terminated,
    "masked_bandit": masked_bandit,
    "two_head_bandit": two_head_bandit,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(PROBES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name, check in PROBES.items():
        if args.only not in (None, name):
            continue
        for seed in range(args.seeds):
            began = time.perf_counter()
            ok, told = check(seed)
            failed += not ok
            print(f"{'ok  ' if ok else 'FAIL'} {name:22} seed {seed}: {told} [{time.perf_counter() - began:.1f} s]")
    print(f"{failed} failed" if failed else "all probes passed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
