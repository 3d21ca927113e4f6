"""Replicates packed into one process against one after the other, through a worker's own code.

    python -m benchmarks.packing [--task cartpole] [--replicates 10] [--rounds 4] [--repeats 3]
                                [--baselines PYTHON] [--profile] [--out FILE]

What a worker's training process does is done here by the same calls (`worker.train.rounds`, `worker.train.block`), in
one process on one thread, one way after the other in turns, so that what else the machine does meets both: all
replicates of two arms together; each replicate for itself (its arms together, as a worker without packing trains it);
each run for itself. Digests of the three are checked against each other in the same run. Quoted beside them is what
Gymnasium's environments take alone for as many steps. Only training is counted, no start of a process, no
evaluation and no HTTP, which a pack has once and unpacked replicates each.

``--task`` chooses CartPole with a feed-forward policy, the same with 256 units a layer (``wide``), CartPole without
velocities and an LSTM (``memory``), ``pendulum``, or ``acrobot``, whose simulator is not one of our own.

``--baselines`` names the Python of an installation with Stable-Baselines3 that sees the same torch: after each stretch
it trains as many runs of PPO with the same settings one after the other on one thread. Its numbers are another
implementation's, so only the time is compared.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import torch

from benchmarks.gym_classic import ROOT_SEED
from benchmarks.stacking import timed
from lockstep.keys import replicate_seed
from lockstep.spec.presets import merge
from lockstep.spec.resolve import ResolvedSpec, parse
from worker import numerics
from worker.envs.gymnasium.stepping.simulated import SimulatedEnvs
from worker.train.block import BlockPlan, BlockTrainer, RoundRecord, RunPlan
from worker.train.cohort_runs import CohortRuns
from worker.train.rounds import Rounds
from worker.train.stacking import ActingStack

_CLOCKS = ("cpu_seconds", "wall_seconds")
_ARMS, _ENVS, _STEPS = 2, 4, 128
#: What ``--task`` names: the preset, and what is laid over it.
_TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"preset": "gym_classic", "env": {"id": "CartPole-v1"}},
    "wide": {"preset": "gym_classic", "env": {"id": "CartPole-v1"}, "net": {"hidden": 256}},
    "memory": {"preset": "gym_lstm", "env": {"id": "CartPole-v1", "wrappers": ["mask_velocity"]}},
    "pendulum": {"preset": "gym_continuous", "env": {"id": "Pendulum-v1"}},
    "acrobot": {"preset": "gym_classic", "env": {"id": "Acrobot-v1"}},
}
#: Where the seconds of a pack go: the name of a share, and what is timed for it.
_PARTS: list[tuple[str, Any, str]] = [
    ("environments", SimulatedEnvs, "take_all"),
    ("environments", SimulatedEnvs, "take_with"),
    ("environments", CohortRuns, "collect"),
    ("acting", ActingStack, "act_for_all"),
    ("acting", ActingStack, "act"),
    ("storing", ActingStack, "see_all"),
    ("storing", ActingStack, "see"),
    ("updates", Rounds, "_update"),
    ("records", BlockTrainer, "record"),
]
#: PPO of Stable-Baselines3 with the settings of the preset gym_classic; prints its processor and wall seconds.
_BASELINE = """
import json, sys, time
import torch
from stable_baselines3 import PPO, __version__
torch.set_num_threads(1)
runs, rounds, envs, steps = map(int, sys.argv[1:5])
ppo = json.loads(sys.argv[5])
from stable_baselines3.common.env_util import make_vec_env
given = {"n_steps": steps, "device": "cpu", **ppo}
make = lambda run: PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=envs, seed=run), seed=run, **given)
models = [make(run) for run in range(runs)]
for model in models[:1]:
    model.learn(envs * steps)
wall, cpu = time.perf_counter(), time.process_time()
for model in models:
    model.learn(rounds * envs * steps)
print(json.dumps({"version": __version__, "cpu_seconds": time.process_time() - cpu,
                  "wall_seconds": time.perf_counter() - wall}))
"""


def resolved(rounds: int, replicates: int, task: str = "cartpole") -> ResolvedSpec:
    """Return two arms that differ in their learning rate; none of the timed rounds is evaluated."""
    arms = [{"label": "a"}, {"label": "b", "overrides": {"ppo.lr": 5e-4}}]
    raw: dict[str, Any] = {
        "experiment": {"name": "packing", "seed": ROOT_SEED, "replicates": replicates},
        "env": {"n_envs": _ENVS, "rollout_steps": _STEPS},
        "budget": {"rounds": rounds + 1},
        "eval": {"every_rounds": rounds + 1},
        "arms": arms,
        "analysis": {"sesoi": 25.0, "failure": {"floor": 0.0}},
    }
    return parse(merge(raw, _TASKS[task]))


def bare_steps(task: str, runs: int, steps: int) -> None:
    """Step one environment for each run as often as the run does, with one action; reset it where an episode ends."""
    for _ in range(runs):
        env = gymnasium.make(_TASKS[task]["env"]["id"])
        env.reset(seed=0)
        action = env.action_space.sample()
        for index in range(steps):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset(seed=index)


def blocks(
    spec: ResolvedSpec, replicates: range, *, stacked: bool, seed: int = ROOT_SEED, arms: int = _ARMS
) -> list[BlockTrainer]:
    """Return the block of each replicate, with the first ``arms`` of its arms."""
    rounds = spec.spec.budget.rounds
    runs = tuple(RunPlan(a.label, a.label, i, "ppo", None, a.config) for i, a in enumerate(spec.arms[:arms]))
    return [
        BlockTrainer(
            BlockPlan("packing", f"blk{r}", 1, r, replicate_seed(seed, r), rounds, spec.hash, runs, len(spec.arms)),
            torch.device("cpu"),
            stacked=stacked,
        )
        for r in replicates
    ]


class Way:
    """One way to train all replicates, round by round.

    Args:
        held: a block for each replicate.
        together: whether their rounds are trained together.
        stacked: whether the runs of what is trained together are stacked.
    """

    def __init__(self, held: list[BlockTrainer], *, together: bool, stacked: bool) -> None:
        self._groups = [held] if together else [[one] for one in held]
        self._rounds = [Rounds(stacked=stacked) for _ in self._groups]
        self._next = 0
        for one in held:
            one.prepare(0)

    def train(self, rounds: int) -> list[str]:
        """Train so many rounds of every replicate and return the digests of all runs."""
        found: dict[tuple[int, int, str], str] = {}
        for replicate, record in self.records(rounds):
            found |= {(replicate, record.round, run.run_id): run.digest for run in record.runs}
        return [digest for _, digest in sorted(found.items())]

    def records(self, rounds: int) -> Iterator[tuple[int, RoundRecord]]:
        """Train so many rounds of every replicate and yield the record of each with its replicate."""
        for group, pack in zip(self._groups, self._rounds, strict=True):
            for index in range(self._next, self._next + rounds):
                for one, outcome in zip(group, pack.train([(block, index) for block in group]), strict=True):
                    if not isinstance(outcome, RoundRecord):
                        raise outcome
                    yield one.plan.replicate, outcome
        self._next += rounds


def compare(
    replicates: int, rounds: int, repeats: int, task: str = "cartpole", python: Path | None = None
) -> dict[str, Any]:
    """Time ``repeats`` stretches of ``rounds`` rounds in every way, the order alternating, and after each the others.

    Args:
        replicates: of two arms.
        rounds: of a stretch.
        repeats: stretches.
        task: one of ``--task``.
        python: of ``--baselines``, None where that is not asked for.
    """
    spec = resolved(1 + rounds * repeats, replicates, task)
    ways = {
        "packed": Way(blocks(spec, range(replicates), stacked=True), together=True, stacked=True),
        "replicate_by_replicate": Way(blocks(spec, range(replicates), stacked=True), together=False, stacked=True),
        "run_by_run": Way(blocks(spec, range(replicates), stacked=False), together=False, stacked=False),
    }
    for way in ways.values():
        way.train(1)  # what is tried out and allocated once is not counted
    settle()
    stretches = []
    for repeat in range(repeats):
        stretch: dict[str, Any] = {}
        digests = {}
        for name in list(ways) if repeat % 2 == 0 else list(ways)[::-1]:
            stretch[name], digests[name] = timed(lambda way=ways[name]: way.train(rounds))  # type: ignore[misc]
        if len({tuple(found) for found in digests.values()}) != 1:
            raise SystemExit(f"the numbers of the ways differ in stretch {repeat}")
        stretch["environments"], _ = timed(lambda: bare_steps(task, _ARMS * replicates, rounds * _ENVS * _STEPS))
        if python is not None:
            stretch["stable_baselines3"] = baselines(python, spec, _ARMS * replicates, rounds)
        stretches.append(stretch)
    return {"env_steps": _ARMS * replicates * rounds * _ENVS * _STEPS, "stretches": stretches, **ratios(stretches)}


def settle() -> None:
    """Keep the collector from walking what lives to the end, as a training process does before its first round."""
    gc.collect()
    gc.freeze()


def ratios(stretches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return by clock how many times as long as packed everything else took, median of all stretches."""
    found: dict[str, Any] = {}
    for clock in _CLOCKS:
        of = {name: [item[name][clock] / item["packed"][clock] for item in stretches] for name in stretches[0]}
        found[clock] = {name: statistics.median(values) for name, values in of.items() if name != "packed"}
    return found


def baselines(python: Path, spec: ResolvedSpec, runs: int, rounds: int) -> dict[str, Any]:
    """Return what as many runs of Stable-Baselines3 take, one after the other."""
    ppo = spec.arms[0].config["ppo"]
    given = {
        "learning_rate": ppo["lr"],
        "n_epochs": ppo["epochs"],
        "batch_size": _ENVS * _STEPS // ppo["minibatches"],
        "gamma": ppo["gamma"],
        "gae_lambda": ppo["lambda"],
        "clip_range": ppo["clip"],
        "clip_range_vf": ppo["value_clip"],
        "ent_coef": ppo["entropy_coef_start"],
    }
    command = [str(python), "-c", _BASELINE, *map(str, (runs, rounds, _ENVS, _STEPS)), json.dumps(given)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


def profile(replicates: int, rounds: int, task: str = "cartpole") -> dict[str, float]:
    """Return the share of each part in the processor time of packed rounds; the clock itself costs a few percent."""
    way = Way(
        blocks(resolved(1 + rounds, replicates, task), range(replicates), stacked=True), together=True, stacked=True
    )
    way.train(1)
    settle()
    spent = dict.fromkeys((name for name, _, _ in _PARTS), 0.0)
    inside = set[str]()
    with contextlib.ExitStack() as restored:
        for name, kind, method in _PARTS:
            own = getattr(kind, method)

            def clocked(*given: Any, name: str = name, own: Any = own) -> Any:
                if name in inside:  # one part of a share may call the other
                    return own(*given)
                inside.add(name)
                began = time.process_time()
                found = own(*given)
                spent[name] += time.process_time() - began
                inside.remove(name)
                return found

            setattr(kind, method, clocked)
            restored.callback(setattr, kind, method, own)
        whole, _ = timed(lambda: way.train(rounds))
    return {name: seconds / whole["cpu_seconds"] for name, seconds in spent.items()}


def main() -> int:
    about = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--task", choices=sorted(_TASKS), default="cartpole")
    parser.add_argument("--replicates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baselines", type=Path, metavar="PYTHON")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.baselines is not None and args.task != "cartpole":
        parser.error("--baselines knows --task cartpole alone; leave one of them out")
    numerics.set_up(deterministic=True, tf32=False, threads=1)
    found = compare(args.replicates, args.rounds, args.repeats, args.task, args.baselines)
    if args.profile:
        found["shares"] = profile(args.replicates, args.rounds, args.task)
    for clock in _CLOCKS:
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found[clock].items())
        print(f"{clock}: packed takes 1; {told}")
    if args.profile:
        print(", ".join(f"{name} {100 * share:.0f} %" for name, share in found["shares"].items()))
    if args.out is not None:
        names = ("torch", "gymnasium", "numpy")
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), **{n: version(n) for n in names}}
        head = {"machine": machine, "task": args.task, "threads": 1, "arms": _ARMS, "replicates": args.replicates}
        args.out.write_text(json.dumps(head | found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
