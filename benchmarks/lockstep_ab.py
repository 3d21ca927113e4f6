"""The whole loop on one device: acting, training, ablating validation, lifecycle, PPO update.

    python -m benchmarks.lockstep_ab --match reference --arms 1 --precision bf16 --out FILE

``--match reference`` is the work of performance.md 2: host 8-16-32, 3 slots, 4 environments, 40 epochs of
24 batches of 512 images and 2,500 validation images, one graft at r0c0 whose gates advance by
themselves. The lifecycle is fixed through the masks: the policy acts, and one action is legal (``--free``:
all that are legal, so that graphs of new topologies are captured in the timed rounds too). Two or
three arms are A/A, so that their difference must be exactly 0. Prints a table, writes JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import MATCHES, Sampler, copy_rate, facts, floor_seconds, images, known, save, set_up, work_unit
from lockstep.spec.presets import merge
from lockstep.spec.resolve import ResolvedSpec, parse
from worker.envs.base import Cohort, Masks, Observation, Seen
from worker.envs.cohorts import Cohorts
from worker.envs.morph.episode.env import MorphEnvs
from worker.envs.morph.life.actions import FULL_TARGET, canonical_action
from worker.envs.morph.life.stages import Op
from worker.envs.morph.network.blueprints import blueprint_id
from worker.train.block import BlockPlan, BlockTrainer, RunPlan
from worker.train.runs import TrainedRun

#: Training images per second of the reference on an H100, n_envs = 4, the faster of its two settings.
REFERENCE_IMAGES_S = 66_795.0


@dataclass(frozen=True)
class Options:
    """What is measured."""

    match: str
    arms: int
    n_envs: int
    precision: str
    tf32: bool
    path: str
    blueprint: str
    rounds: int
    warmup_rounds: int
    horizon: int | None = None
    free: bool = False


class Timed:
    """A cohort that knows how long its steps took."""

    def __init__(self, envs: MorphEnvs) -> None:
        self.envs, self.step_seconds = envs, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.envs, name)

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Issue a step."""
        with self._timed():
            self.envs.issue(actions)

    def collect(self) -> list[Seen | None]:
        """Collect a step."""
        with self._timed():
            return self.envs.collect()

    def pay(self) -> list[Tensor | None]:
        """Pay a step."""
        with self._timed():
            return self.envs.pay()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.step_seconds += time.perf_counter() - began


class Scheduled(Timed):
    """A cohort whose masks leave one action: GERMINATE at r0c0 in step 0, then WAIT."""

    def __init__(self, envs: MorphEnvs, blueprint: str) -> None:
        super().__init__(envs)
        grow = canonical_action(envs.heads)
        grow[:6] = [int(Op.GERMINATE), 0, blueprint_id(blueprint), 0, 0, FULL_TARGET]
        self._masks = [self._only(grow), self._only(canonical_action(envs.heads))]

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round with GERMINATE as the only choice."""
        return [(observation, self._masks[0]) for observation, _ in self.envs.begin_round(round_index)]

    def collect(self) -> list[Seen | None]:
        """Collect a step, and leave WAIT as the only choice."""
        found = super().collect()
        for seen in found:
            if seen is not None:
                seen.masks = self._masks[1]
        return found

    def _only(self, row: Sequence[int]) -> dict[str, Tensor]:
        sizes = {head.name: head.size for head in self.envs.heads}
        masks = {}
        for head, index in zip(self.envs.heads, row, strict=True):
            shape = (self.envs.num_envs, *(sizes[parent] for parent in head.parents), head.size)
            mask = torch.zeros(shape, dtype=torch.bool, device=self.envs.device)
            mask[..., index] = True
            masks[head.name] = mask
        return masks


def timed_of(cohort: Cohort, options: Options) -> Timed:
    """Return the environments of a cohort, with the fixed lifecycle unless policies are free."""
    if not isinstance(cohort.envs, MorphEnvs):
        raise TypeError(f"{type(cohort.envs).__name__} has no grafts")
    return Timed(cohort.envs) if options.free else Scheduled(cohort.envs, options.blueprint)


def runs_of(resolved: ResolvedSpec) -> tuple[RunPlan, ...]:
    """Return one run for each arm of a specification."""
    arms = enumerate(resolved.arms)
    return tuple(RunPlan(f"run-{a.label}", a.label, i, a.policy, a.static_set, a.config) for i, a in arms)


def plan_of(options: Options) -> BlockPlan:
    """Return one block of equal arms; its budget is never reached, so nothing is evaluated."""
    rounds = 10_000
    own = {
        "experiment": {"name": "bench", "kind": "aa", "replicates": 1},
        "arms": [{"label": label} for label in "ABC"],
        "env": {"horizon": options.horizon} if options.horizon else {},
        "budget": {"rounds": rounds},
        "precision": {"host": options.precision, "tf32": options.tf32},
        "engine": {"path": options.path},
        "eval": {"every_rounds": rounds},
    }
    resolved = parse(merge(work_unit(options.match, options.n_envs), own))
    runs = runs_of(resolved)[: options.arms]
    return BlockPlan("bench", "block", 1, 0, 1, rounds, resolved.hash, runs, options.arms)


def measure(options: Options, data_dir: Path | None) -> dict[str, Any]:
    """Train the warm-up and the timed rounds and return the report."""
    device = set_up(tf32=options.tf32)
    began = time.perf_counter()
    rate = copy_rate(device)
    trainer = BlockTrainer(plan_of(options), device, data_dir=data_dir)
    compile_s = float(trainer.warm_up()["seconds"])  # as a worker does before the first round
    timed_envs = [timed_of(cohort, options) for cohort in trainer.envs.cohorts]
    trainer.envs = Cohorts(
        [replace(cohort, envs=own) for cohort, own in zip(trainer.envs.cohorts, timed_envs, strict=True)]
    )
    engine = timed_envs[0].engine
    setup_s = time.perf_counter() - began - compile_s
    records = trainer.rounds(0)
    for _ in range(options.warmup_rounds):
        next(records)
    warm = asdict(engine.counters)
    warm_s = time.perf_counter() - began - setup_s - compile_s
    for part in timed_envs:
        part.step_seconds = 0.0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    sampler = Sampler()
    sampler.start()
    timed = [next(records) for _ in range(options.rounds)]
    util = sampler.finish()
    work = {name: value - warm[name] for name, value in asdict(engine.counters).items()}
    report = _report(options, timed, work, timed_envs, device, rate)
    report["warmup"] = {"setup_s": setup_s, "warmup_rounds_s": warm_s, "compile_s": compile_s}
    report["warmup"] |= {"capture_s": warm["capture_seconds"], "captures": warm["captures"]}
    report["gpu"] = {"util_mean": util, "memory_peak_bytes": _peak(device), "graph_bytes": warm["graph_bytes"]}
    report["checks"] = {"parity_max_abs": None, "aa_difference": _difference(trainer), "isolation": {}}
    report["final_accuracy"] = {
        run.run_id: [row["final_accuracy"] for row in run.episodes if "final_accuracy" in row] for run in timed[-1].runs
    }
    return report


def _report(
    options: Options,
    timed: Sequence[Any],
    work: dict[str, Any],
    timed_envs: Sequence[Timed],
    device: torch.device,
    copy_bytes_s: float,
) -> dict[str, Any]:
    seconds = [record.seconds for record in timed]
    total = sum(seconds)
    steps = len(timed) * options.n_envs * timed_envs[0].steps_per_round * options.arms
    stepping = sum(part.step_seconds for part in timed_envs)
    update = sum(record.update_seconds for record in timed)
    engine = work["issue_seconds"] + work["wait_seconds"]
    act = sum(record.rollout_seconds for record in timed) - stepping
    element = 2 if options.precision == "bf16" else 4
    shape = timed_envs[0].config.task.host
    floor = floor_seconds(copy_bytes_s, shape.base, element, work["train_items"], work["val_forwarded"])
    return {
        **facts(device),
        "config": asdict(options) | {"env": dict(MATCHES[options.match])},
        "work": {
            "rounds": len(timed),
            "env_steps": steps,
            "host_steps": work["host_steps"],
            "train_images": work["train_items"],
            "val_images_asked": work["val_asked"],
            "val_images_forwarded": work["val_forwarded"],
            "forward_images": work["train_items"] + work["val_forwarded"],
            "ppo_updates": len(timed) * options.arms,
            "transitions": steps,
            "captures": work["captures"],
            "cache_hits": work["hits"],
            "graph_replays": work["replays"],
            "device_to_host_copies": work["copies"],
        },
        "time": {
            "round_s": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
            "phase_s": {
                "train": work["train_seconds"],
                "validate": work["validate_seconds"],
                "issue": work["issue_seconds"],
                "wait": work["wait_seconds"],
                "act": act,
                "lifecycle": stepping - engine,
                "update": update,
                "capture": work["capture_seconds"],
            },
        },
        "rate": {
            "train_images_s": work["train_items"] / total,
            "forward_images_s": (work["train_items"] + work["val_forwarded"]) / total,
            "env_steps_s": steps / total,
            "copy_bytes_s": known(copy_bytes_s),
            "pct_memory_floor": known(100.0 * floor / total),
            "times_reference": work["train_items"] / total / REFERENCE_IMAGES_S,
        },
    }


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _difference(trainer: BlockTrainer) -> float | None:
    """Return the largest difference of a policy from that of the first of equal arms; None for one arm."""
    policies = [run.learner.flat.data for run in trainer.runs if isinstance(run, TrainedRun)]
    return None if len(policies) < 2 else max(float((other - policies[0]).abs().max()) for other in policies[1:])


def table(report: Mapping[str, Any]) -> str:
    """Return the report as lines of at most 80 columns."""
    rate, took, config = report["rate"], report["time"], report["config"]
    lines = [
        f"{report['machine']['gpu']}  {config['path']} {config['precision']}"
        f"{' tf32' if config['tf32'] else ''}  {config['arms']} arm(s) x {config['n_envs']} envs",
        f"  train {rate['train_images_s']:12,.0f} img/s   {rate['times_reference']:6.2f} x reference"
        f"   {rate['pct_memory_floor'] or math.nan:5.1f} % of floor",
        f"  env steps {rate['env_steps_s']:8.2f} /s   round {took['round_s']['median']:8.3f} s"
        f" ({took['round_s']['min']:.3f}-{took['round_s']['max']:.3f})",
        "  " + "  ".join(f"{name} {value:.2f}" for name, value in took["phase_s"].items()),
        f"  captures {report['warmup']['captures']} in {report['warmup']['capture_s']:.2f} s (warm-up),"
        f" {report['work']['captures']} timed; A/A difference {report['checks']['aa_difference']}",
    ]
    return "\n".join(lines)


def options_of(arguments: Sequence[str] | None = None) -> tuple[Options, Path | None, Path | None]:
    """Read the command line: what is measured, where the data lies, where the JSON goes."""
    parser = argparse.ArgumentParser(description="Measure the whole loop on one device.")
    parser.add_argument("--match", choices=sorted(MATCHES), default="reference")
    parser.add_argument("--arms", type=int, choices=(1, 2, 3), default=1)
    parser.add_argument("--n-envs", type=int)
    parser.add_argument("--horizon", type=int, help="env steps of an episode, instead of those of the match")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    parser.add_argument("--free", action="store_true", help="policies choose, instead of the fixed lifecycle")
    parser.add_argument("--blueprint", default="conv_light")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup-rounds", type=int, default=1)
    parser.add_argument("--data-dir", type=Path, help="CIFAR-10 or data of its form; else generated")
    parser.add_argument("--out", type=Path)
    found = vars(parser.parse_args(arguments))
    places = {name: found.pop(name) for name in ("out", "data_dir")}
    found["n_envs"] = found["n_envs"] or int(MATCHES[found["match"]]["n_envs"])
    return Options(**found), places["data_dir"], places["out"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the JSON."""
    options, data_dir, out = options_of(arguments)
    with images(options.match, data_dir) as folder:
        report = measure(options, folder)
    print(table(report))
    save(out, report)


if __name__ == "__main__":
    main()
