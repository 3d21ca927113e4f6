"""Headroom: how far grafts can raise the final test accuracy of each host above what it reaches alone.

    python -m benchmarks.headroom --cases digits_tiny synth_small --out docs/results/headroom

Five arms without learning: ``noop``, ``static_matched`` and the three fixed schedules. Each replicate is one
evaluation of the block loop (``worker.train.evaluate``) on the keys that the service would use, so the numbers
are those of ``eval/accuracy`` of such an experiment; what is left out is a training round, in which a control
learns nothing. Adds each case to ``<out>.json`` and prints the table of all rows that the file holds.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.gratings import FAR, PAIR_NOISE, write_pairs
from benchmarks.machine import set_up, versions
from lockstep.keys import replicate_seed
from lockstep.spec import rules
from lockstep.spec.presets import merge
from lockstep.spec.resolve import ResolvedSpec, parse
from worker.train.environments import make_control, make_environments, ordered_runs
from worker.train.evaluate import play
from worker.train.plan import BlockPlan, RunPlan

SCHEDULES = ("fixed_schedule", "fixed_early", "fixed_deep_first")
NEEDED = 5.0
_SEED = 20_261


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        base: spec keys: a preset, or a task with its own defaults.
        static_set: grafts of ``static_matched``.
        episodes: evaluation episodes whose mean is a replicate's score.
        replicates: paired repetitions.
        reduced: what is smaller than the preset, in words; empty = full size.
    """

    base: Mapping[str, Any]
    static_set: Mapping[str, str]
    episodes: int = 1
    replicates: int = 4
    reduced: str = ""


_CNN = {"r0c0": "bottleneck", "r0c1": "conv_heavy"}
_CNN3 = {"r0c0": "bottleneck", "r0c1": "conv_heavy", "r0c2": "conv_heavy"}
_LM = {f"r0c{column}": "attention" for column in range(3)}
_SMALL = {"horizon": 60, "batch_size": 64, "val_images": 500, "pace": "quick"}
_WORDS = (
    "24 x 64 images a step instead of 24 x 512, 60 steps instead of 150, 500 validation images, pace quick, 1 replicate"
)
_PAIRS = f"generated pairs of gratings instead of CIFAR-10 (far {FAR:g}, noise {PAIR_NOISE:g})"


def _task(name: str, **env: Any) -> dict[str, Any]:
    return {"env": {"task": name, **env}}


CASES: Mapping[str, Case] = {
    "digits_tiny": Case(_task("digits_tiny"), _CNN, episodes=2),
    "digits_small": Case(_task("digits_small"), _CNN, episodes=2),
    "digits_bench": Case({"preset": "digits_bench"}, _CNN, episodes=4),
    "digits_small_bench": Case({"preset": "digits_small_bench"}, _CNN, episodes=2),
    "digits_cpu": Case({"preset": "digits_cpu"}, _CNN, episodes=4),
    "synth_small": Case(_task("synth_small"), _CNN),
    "synth_small_bench": Case({"preset": "synth_small_bench"}, _CNN),
    "lm_tiny": Case(_task("lm_tiny"), _LM),
    "lm_bench": Case({"preset": "lm_bench"}, _LM),
    "cifar_baseline": Case(_task("cifar_baseline"), _CNN3),
    "cifar_impaired": Case(_task("cifar_impaired"), _CNN3),
    "cifar_bench": Case({"preset": "cifar_bench"}, _CNN3),
    **{
        f"{name}_reduced": Case({"preset": name, "env": _SMALL}, _CNN3, replicates=1, reduced=_WORDS)
        for name in ("cifar_baseline", "cifar_impaired", "cifar_bench")
    },
}


def spec_of(
    name: str, case: Case, schedules: Sequence[str] = SCHEDULES, engine: Mapping[str, Any] | None = None
) -> ResolvedSpec:
    """Return the resolved experiment of a case; a spec that the service would refuse raises.

    Args:
        name: of the case.
        case: what is measured.
        schedules: arms beside ``noop`` and ``static``.
        engine: spec keys of how it is computed.
    """
    arms = [{"label": policy, "policy": policy} for policy in ("noop", *schedules)]
    static = {"label": "static", "policy": "static_matched", "static_set": dict(case.static_set)}
    own = {
        # smoke: nothing is registered for a test, for the table claims none
        "experiment": {"name": f"headroom {name}", "seed": _SEED, "mode": "smoke"},
        "reward": {"mode": "sparse"},
        "arms": [*arms, static],
        "eval": {"episodes": case.episodes, "mode": "greedy"},
        **(engine or {}),
    }
    resolved = parse(merge(case.base, own))
    problems, _ = rules.check(resolved)
    assert not problems, (name, problems)
    return resolved


def plan_of(resolved: ResolvedSpec, replicate: int) -> BlockPlan:
    """Return the block of one replicate, all arms in one share."""
    runs = tuple(
        RunPlan(arm.label, arm.label, index, arm.policy, arm.static_set, arm.config)
        for index, arm in enumerate(resolved.arms)
    )
    seed = replicate_seed(_SEED, replicate)
    return BlockPlan("headroom", str(replicate), 1, replicate, seed, 1, resolved.hash, runs, len(runs))


@dataclass
class _Actor:
    """A control behind the call that ``play`` makes."""

    control: Any
    step: int = -1

    def act(self, *_: Any) -> Any:
        self.step += 1
        return self.control.act(self.step)


def scores(
    resolved: ResolvedSpec, case: Case, replicate: int, device: torch.device, data: Path | None
) -> dict[str, Any]:
    """Return {arm: {accuracy %, loss, grafts kept}} of a replicate's evaluation."""
    if device.type == "cuda":  # the graphs of ten replicates would not fit beside each other
        gc.collect()
        torch.cuda.empty_cache()
    plan = plan_of(resolved, replicate)
    envs = make_environments(plan, device, phase="eval", num_envs=case.episodes, data_dir=data)
    order = [plan.runs[index] for index in ordered_runs(plan)]
    played = play(envs, lambda i: _Actor(make_control(plan, order[i], envs, i, 0)), len(order))
    columns = {"accuracy": "test_accuracy", "loss": "test_loss", "fossils": "grafts_fossilized"}
    return {
        run.arm: {name: fmean(float(e.values[column]) for e in episodes) for name, column in columns.items()}
        for run, episodes in zip(order, played, strict=True)
    }


def run(name: str, case: Case, options: argparse.Namespace, device: torch.device, data: Path | None) -> dict[str, Any]:
    """Measure a case and return its row."""
    schedules: Sequence[str] = options.schedules
    engine = {"engine": {"path": options.path}, "precision": {"host": options.precision}}
    resolved, began = spec_of(name, case, schedules, engine), time.process_time()
    found = [scores(resolved, case, replicate, device, data) for replicate in range(case.replicates)]
    row: dict[str, Any] = {"reduced": case.reduced, "episodes": case.episodes, "replicates": found}
    means, losses = ({a: fmean(one[a][key] for one in found) for a in found[0]} for key in ("accuracy", "loss"))
    best = max(schedules, key=means.__getitem__, default=None)
    row |= {"means": means, "losses": losses, "best": best}
    for label, arm in {"static": "static", **({"schedule": best} if best else {})}.items():
        gains = [one[arm]["accuracy"] - one["noop"]["accuracy"] for one in found]
        row[f"{label}_gain"] = {"mean": fmean(gains), "least": min(gains), "most": max(gains)}
    config = resolved.arms[0].config
    row["updates"] = [config["env"][key] for key in ("horizon", "batches_per_step", "batch_size")]
    row |= {"host_lr": config["host"]["lr"], "graft_lr": config["graft"]["lr"], "device": device.type, **engine}
    return row | {"versions": versions(), "cpu_seconds": time.process_time() - began}


def table(rows: Mapping[str, Any]) -> str:
    """Return the Markdown table of the rows measured so far, cases not run included."""
    lines = [
        "| case | updates, host lr, graft lr | alone | static | best schedule | static gains | schedule gains |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in CASES:
        if name not in rows:
            lines.append(f"| {name} | **not run** (see below) | | | | | |")
            continue
        row = rows[name]
        shape = " x ".join(map(str, row["updates"])) + f", {row['host_lr']:g}, {row['graft_lr']:g}"
        means, losses, best = row["means"], row["losses"], row["best"]
        cells = [shape, *(f"{means[arm]:.1f} % ({losses[arm]:.3f})" for arm in ("noop", "static"))]
        cells.append(f"{means[best]:.1f} % ({losses[best]:.3f}) `{best}`" if best else "not run")
        gains = [row.get(f"{label}_gain") for label in ("static", "schedule")]
        cells += [f"{g['mean']:+.1f} ({g['least']:+.1f} to {g['most']:+.1f})" if g else "" for g in gains]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=[])
    parser.add_argument("--schedules", nargs="*", choices=SCHEDULES, default=SCHEDULES)
    parser.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10's files")
    parser.add_argument("--gratings", type=Path, help="write pairs of gratings in CIFAR-10's format there and use them")
    parser.add_argument("--out", type=Path, required=True, help="without suffix: results are added to its .json")
    options = parser.parse_args()
    device, store = set_up(tf32=False), options.out.with_suffix(".json")
    if options.gratings:
        write_pairs(options.gratings)
    for name in options.cases:
        row = run(name, CASES[name], options, device, options.gratings or options.data_dir)
        if options.gratings and name.startswith("cifar"):
            row["reduced"] = "; ".join(filter(None, (_PAIRS, row["reduced"])))
        rows = {**(json.loads(store.read_text()) if store.exists() else {}), name: row}
        store.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {row['means']} in {row['cpu_seconds']:.0f} s of CPU", flush=True)
    print(table(json.loads(store.read_text())))


if __name__ == "__main__":
    main()
