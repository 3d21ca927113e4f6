"""The engine alone: N hosts of the reference's shape train side by side, no policy, hardly any validation.

    python -m benchmarks.host_engine --hosts 4 8 16 --batch 512 --precision bf16 fp32 --grafts 0 --out FILE
    python -m benchmarks.host_engine --variant fused --hosts 8 --batch 512 --grafts 1 --how shadow

Variants: ``eager`` (plain, sequential), ``captured`` (one graph per host) and ``fused`` (captured, own
kernels). Before it is timed, a variant's parameters are compared with eager after one epoch. Prints one
line per cell, writes JSON.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import EDGE, copy_rate, facts, floor_seconds, known, save, set_up
from lockstep.spec.tasks import CnnShape, action_order
from worker.envs.morph.engine import make_engine
from worker.envs.morph.engine.eager import Job, StepEngine, run_jobs
from worker.envs.morph.engine.validate import Validator, ValPlan
from worker.envs.morph.network.blend import Operator
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.network.hosts import Pass
from worker.envs.morph.network.network import Network, SlotPlan
from worker.envs.morph.task.config import EnvConfig, resolve_path, resolve_precision
from worker.envs.morph.task.data import Arrays, TrainingData

_BATCHES = 24


@dataclass(frozen=True)
class Cell:
    """One measurement; ``grafts`` conv_light grafts take part as ``how`` says, in the slots r0c0, r0c1, .."""

    variant: Literal["eager", "captured", "fused"]
    hosts: int
    batch: int
    precision: Literal["bf16", "fp32"]
    tf32: bool
    grafts: int
    base: int
    images: int
    how: Literal["blend", "shadow"] = "blend"


class Bench:
    """N networks with an engine over generated CIFAR-shaped images."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        task = EnvConfig.for_task("cifar_baseline").task
        task = replace(task, host=CnnShape(3, EDGE, 3, cell.base, 3, 3))
        base = EnvConfig.for_task("cifar_baseline", batch_size=cell.batch, batches_per_step=_BATCHES)
        self.config = replace(base, task=task, precision=cell.precision, path=cell.variant)
        self.data = TrainingData(self.config, _arrays(cell.images), device, 0)
        self.engine: StepEngine = make_engine(
            resolve_path(self.config, device), resolve_precision(self.config, device), self.data, device
        )
        slots = action_order(task.host.slots())
        self.networks = [Network(self.config, slots, device) for _ in range(cell.hosts)]
        self.plan: tuple[SlotPlan, ...] = ()
        for index, network in enumerate(self.networks):
            network.reset(_draw(index))
            rows = [i for i, slot in enumerate(slots) if slot.row == 0][: cell.grafts]
            for slot in rows:
                network.germinate(slot, blueprint_id("conv_light"), Operator.ADD, _draw(slot))
                network.set_blend(slot, 1.0, active=True)
            order = network.in_execution_order(rows)
            self.plan = tuple(SlotPlan(slot, cell.how, detach=cell.how == "shadow") for slot in order)
        self.validators = [Validator(network, 16_384) for network in self.networks]

    def epoch(self, number: int) -> None:
        """Train every network for one epoch."""
        players = ValPlan((), fixed=tuple(item.slot for item in self.plan))
        jobs = [
            Job(network, validator, self.data.draw(_draw(number), _draw(number + 1)), self.plan, Pass("train"), players)
            for network, validator in zip(self.networks, self.validators, strict=True)
        ]
        run_jobs(self.engine, jobs, self.data.val)

    def parameters(self) -> Tensor:
        """Return every parameter and statistic of the first network."""
        return torch.cat([self.networks[0].store.flat, self.networks[0].store.buffers])


def _arrays(images: int) -> Arrays:
    draw = _draw(0)
    pixels = draw.integers(0, 256, (images, 3, EDGE, EDGE), dtype=np.uint8)
    labels = draw.integers(0, 10, images, dtype=np.uint8)
    splits = {"train": np.arange(images), "val": np.arange(64), "test": np.arange(64)}
    return Arrays(pixels, labels, splits, (0.5,) * 3, (0.25,) * 3, 255.0)


def _draw(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


def measure(cell: Cell, epochs: int, device: torch.device, rate: float) -> dict[str, Any]:
    """Compare a cell with eager, time it and return its row; ``rate`` is the copy rate of the card."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = cell.tf32
    bench, oracle = Bench(cell, device), Bench(replace(cell, variant="eager", hosts=1), device)
    bench.epoch(0)
    oracle.epoch(0)
    parity = float((bench.parameters() - oracle.parameters()).abs().max())
    bench.epoch(1)
    captured = asdict(bench.engine.counters)
    seconds = []
    for number in range(2, 2 + epochs):
        began = time.perf_counter()
        bench.epoch(number)
        seconds.append(time.perf_counter() - began)
    work = asdict(bench.engine.counters)
    images = cell.hosts * cell.batch * _BATCHES
    trained = (work["train_seconds"] - captured["train_seconds"]) / epochs
    took = trained or float(np.median(seconds))
    floor = floor_seconds(rate, cell.base, 2 if cell.precision == "bf16" else 4, images, 0.0)
    return {
        "cell": asdict(cell),
        "work": {"train_images": images * epochs, "host_steps": cell.hosts * _BATCHES * epochs},
        "epoch_s": {"median": float(np.median(seconds)), "min": min(seconds), "max": max(seconds)},
        "train_images_s": images / took,
        "wall_images_s": images / float(np.median(seconds)),
        "pct_memory_floor": known(100.0 * floor / took),
        "capture_ms": 1000.0 * captured["capture_seconds"] / max(1, captured["captures"]),
        "graph_mib": captured["graph_bytes"] / 2**20 / max(1, cell.hosts),
        "parity_max_abs": parity,
    }


def line(row: dict[str, Any]) -> str:
    """Return a row as one line of at most 80 columns."""
    cell = row["cell"]
    name = f"{cell['variant']:8} {cell['precision']}{'+tf32' if cell['tf32'] else ''}"
    return (
        f"{name:18} N={cell['hosts']:<3} B={cell['batch']:<4} g{cell['grafts']}"
        f" {row['train_images_s']:11,.0f} img/s {row['pct_memory_floor'] or math.nan:5.1f}%"
        f" {row['capture_ms']:6.1f} ms {row['parity_max_abs']:.0e}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every combination, print it, write the JSON."""
    parser = argparse.ArgumentParser(description="Measure the engine alone.")
    parser.add_argument("--hosts", type=int, nargs="+", default=[4])
    parser.add_argument("--batch", type=int, nargs="+", default=[512])
    parser.add_argument("--precision", nargs="+", choices=("bf16", "fp32"), default=["bf16"])
    parser.add_argument("--variant", nargs="+", choices=("eager", "captured", "fused"), default=["captured", "fused"])
    parser.add_argument("--grafts", type=int, nargs="+", default=[0])
    parser.add_argument("--how", choices=("blend", "shadow"), default="blend", help="how grafts train")
    parser.add_argument("--base", type=int, default=8)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    device = set_up(tf32=args.tf32)
    rate, rows = copy_rate(device), []
    for variant, precision, hosts, batch, grafts in product(
        args.variant, args.precision, args.hosts, args.batch, args.grafts
    ):
        cell = Cell(variant, hosts, batch, precision, args.tf32, grafts, args.base, args.images, args.how)
        rows.append(measure(cell, args.epochs, device, rate))
        print(line(rows[-1]), flush=True)
    save(args.out, facts(device) | {"rows": rows})


if __name__ == "__main__":
    main()
