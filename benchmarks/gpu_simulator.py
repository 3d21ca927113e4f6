"""A simulator on the GPU: env steps per second of arms in lockstep beside a plain loop of the same PPO.

    python -m benchmarks.gpu_simulator [--rounds 10] [--repeats 5] [--device cuda:0] [--out FILE]

The task is ``carts`` of the example plug-in with preset ``gpu_sim``: 4,096 carts x 16 steps a round, 5 epochs of 4
minibatches, 256-256 tanh for actor and critic apart, without the KL stop so that every side takes all steps. Timed in
turns within one process are arm a alone, arm b alone, both in lockstep, and a loop that does nothing but PPO: same
simulator, network, settings and precision, written as one would for a single run, without masks, checks, metrics,
digests or keyed randomness. Training only: no evaluation. The plug-in must be installed (examples/plugin).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import facts, save, set_up
from lockstep.keys import replicate_seed
from lockstep.spec.resolve import parse
from worker.train.block import BlockPlan, BlockTrainer, RunPlan

ROOT_SEED = 7
ENVS, STEPS = 4096, 16
#: Two arms in lockstep should take at most so many times what they take alone, one after the other.
GOAL = 1.1


def lockstep(arms: tuple[int, ...], rounds: int, device: torch.device) -> Callable[[], None]:
    """Return what trains ``arms`` for the next stretch of a block of two arms, warmed up."""
    raw: dict[str, Any] = {
        "experiment": {"name": "gpu simulator", "seed": ROOT_SEED, "replicates": 6},
        "preset": "gpu_sim",
        "env": {"id": "carts"},
        "budget": {"rounds": 10_000},
        "ppo": {"target_kl": None},
        "eval": {"every_rounds": 10_000},
        "arms": [{"label": "a"}, {"label": "b", "overrides": {"ppo.lr": 5e-4}}],
        "analysis": {"sesoi": 25.0, "failure": {"floor": 0.0}},
    }
    resolved = parse(raw)
    plans = [RunPlan(a.label, a.label, i, "ppo", None, a.config) for i, a in enumerate(resolved.arms)]
    chosen = tuple(plans[index] for index in arms)
    seed = replicate_seed(ROOT_SEED, 0)
    plan = BlockPlan("simulator", "simulator", 1, 0, seed, 10_000, resolved.hash, chosen, len(plans))
    trainer = BlockTrainer(plan, device)
    trainer.warm_up()
    records = trainer.rounds(0)

    def train() -> None:
        for _ in islice(records, rounds):
            pass

    return train


class PlainLoop:
    """PPO for one run and no more, the settings of preset ``gpu_sim`` without its KL stop.

    Args:
        device: of simulator and network.
    """

    def __init__(self, device: torch.device) -> None:
        self.envs = next(iter(entry_points(group="lockstep.environments", name="carts"))).load()(ENVS, device)
        self.observation: Tensor = self.envs.reset(seed=0)[0]
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, outputs)).to(
                device
            )
            for outputs in (2, 1)
        )
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=1e-3, eps=1e-5, fused=device.type == "cuda")
        self.mean, self.variance, self.count = torch.zeros(4, device=device), torch.ones(4, device=device), 0.0

    def rounds(self, count: int) -> None:
        """Train for ``count`` rounds."""
        for _ in range(count):
            self._update(*self._roll())

    def _seen(self, observation: Tensor) -> Tensor:
        return ((observation - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-10, 10)

    @torch.no_grad()
    def _roll(self) -> tuple[Tensor, ...]:
        kept: list[tuple[Tensor, ...]] = []
        for _ in range(STEPS):
            seen = self._seen(self.observation)
            logits, value = self.actor(seen).log_softmax(-1), self.critic(seen).squeeze(-1)
            action = torch.multinomial(logits.exp(), 1)
            raw = self.observation
            self.observation, reward, fallen, late, infos = self.envs.step(action.squeeze(-1))
            after = self.critic(self._seen(infos["final_obs"])).squeeze(-1)
            log_prob = logits.gather(-1, action).squeeze(-1)
            kept.append((raw, seen, action, log_prob, value, reward, fallen, late, after))
        raw, seen, action, log_prob, value, reward, fallen, late, after = (
            torch.stack(x) for x in zip(*kept, strict=True)
        )
        delta = reward + 0.99 * (~fallen) * after - value
        carry = 0.99 * 0.95 * ~(fallen | late)
        advantages, running = torch.zeros_like(delta), torch.zeros_like(delta[0])
        for t in reversed(range(STEPS)):
            running = delta[t] + carry[t] * running
            advantages[t] = running
        self._refresh(raw.flatten(0, 1))
        parts = (seen, action, log_prob, advantages, advantages + value, value)
        return tuple(part.flatten(0, 1) for part in parts)

    def _refresh(self, raw: Tensor) -> None:
        mean, variance, count = raw.mean(0), raw.var(0), len(raw)
        total, away = self.count + count, mean - self.mean
        self.variance = (
            self.variance * self.count + variance * count + away.square() * self.count * count / total
        ) / total
        self.mean, self.count = self.mean + away * count / total, total

    def _update(self, *parts: Tensor) -> None:
        for _ in range(5):
            for index in torch.randperm(ENVS * STEPS, device=parts[0].device).chunk(4):
                seen, action, old, advantage, target, old_value = (part[index] for part in parts)
                logits, value = self.actor(seen).log_softmax(-1), self.critic(seen).squeeze(-1)
                log_ratio = logits.gather(-1, action).squeeze(-1) - old
                ratio = log_ratio.exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                near = old_value + (value - old_value).clamp(-0.2, 0.2)
                error = torch.max((value - target).square(), (near - target).square()).mean()
                entropy = -(logits.exp() * logits).sum(-1).mean()
                self.optimiser.zero_grad()
                (policy + 1.0 * 0.5 * error - 0.005 * entropy).backward()
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
                self.optimiser.step()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    set_up(tf32=False)
    device = torch.device(args.device)
    plain = PlainLoop(device)
    sides: dict[str, Callable[[], None]] = {
        "a": lockstep((0,), args.rounds, device),
        "b": lockstep((1,), args.rounds, device),
        "both": lockstep((0, 1), args.rounds, device),
        "plain": lambda: plain.rounds(args.rounds),
    }
    for train in sides.values():
        train()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(args.repeats):
        for name in list(sides) if repeat % 2 == 0 else list(sides)[::-1]:
            began = time.perf_counter()
            sides[name]()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[name].append(time.perf_counter() - began)
    steps = args.rounds * ENVS * STEPS
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rates = {name: steps * (2 if name == "both" else 1) / median for name, median in medians.items()}
    ratios = [both / (a + b) for a, b, both in zip(seconds["a"], seconds["b"], seconds["both"], strict=True)]
    result = {
        **facts(device),
        "envs": ENVS,
        "steps_per_round": STEPS,
        "rounds": args.rounds,
        "seconds": seconds,
        "env_steps_per_second": rates,
        "both_over_sum_of_alone": ratios,
        "median_both_over_sum": statistics.median(ratios),
        "one_arm_over_plain_rate": rates["a"] / rates["plain"],
    }
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} env steps/s")
    print(f"both over the sum of each alone: {result['median_both_over_sum']:.2f} (goal {GOAL})")
    print(f"one arm beside the plain loop: {result['one_arm_over_plain_rate']:.2f} of its rate")
    save(args.out, result)
    return int(statistics.median(ratios) > GOAL)


if __name__ == "__main__":
    sys.exit(main())
