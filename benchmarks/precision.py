"""Does bf16 train hosts as well as TF32: final accuracies of paired episodes over at least ten replicates.

    python -m benchmarks.precision --gratings /tmp/gratings --out benchmarks/results/precision_h100.json
    python -m benchmarks.precision --case digits_tiny --settings fp32 fp32 --replicates 2 --out FILE

Plays the five-arm comparison of ``benchmarks.headroom`` (no learning; equal keys) once per setting and replicate.
The rule of performance.md 7: a speed in bf16 counts only where the mean difference lies within the spread (the
standard deviation) between replicates. Prints one row per arm and writes all scores.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.gratings import write_gratings, write_pairs
from benchmarks.headroom import CASES, Case, scores, spec_of
from benchmarks.machine import facts, save, set_up
from lockstep.spec.presets import merge

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"precision": {"host": "fp32", "tf32": False}},
    "tf32": {"precision": {"host": "fp32", "tf32": True}, "engine": {"path": "captured"}},
    "bf16": {"precision": {"host": "bf16", "tf32": False}, "engine": {"path": "captured"}},
    "fp32-fused": {"precision": {"host": "fp32", "tf32": False}, "engine": {"path": "fused"}},
    "tf32-fused": {"precision": {"host": "fp32", "tf32": True}, "engine": {"path": "fused"}},
    "bf16-fused": {"precision": {"host": "bf16", "tf32": False}, "engine": {"path": "fused"}},
}


def accuracies(case: Case, name: str, setting: str, replicates: int, data: Path | None) -> dict[str, list[float]]:
    """Return {arm: test accuracy (%) of each replicate} under one setting."""
    chosen = SETTINGS[setting]
    device = set_up(tf32=bool(chosen["precision"]["tf32"]))
    resolved = spec_of(name, replace(case, base=merge(case.base, chosen)))
    found = [scores(resolved, case, replicate, device, data) for replicate in range(replicates)]
    return {arm: [one[arm]["accuracy"] for one in found] for arm in found[0]}


def row(arm: str, first: list[float], second: list[float]) -> dict[str, Any]:
    """Return the paired difference of an arm beside the spread of its first setting."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    found = {"arm": arm, "first": fmean(first), "second": fmean(second), "difference": fmean(differences)}
    return found | {"spread": stdev(first), "within": abs(fmean(differences)) <= stdev(first)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), default="cifar_baseline")
    parser.add_argument("--settings", nargs=2, choices=list(SETTINGS), default=["tf32", "bf16-fused"])
    parser.add_argument("--replicates", type=int, default=10)
    parser.add_argument("--horizon", type=int, help="a shorter episode, in env steps")
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10's files")
    parser.add_argument("--pairs", type=Path, help="write pairs of gratings there, which leave headroom, and use them")
    parser.add_argument("--gratings", type=Path, help="write gratings in CIFAR-10's format there and use them")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    case = CASES[options.case]
    if options.horizon:
        case = replace(case, base=merge(case.base, {"env": {"horizon": options.horizon}}))
    if options.gratings:
        write_gratings(options.gratings)
    if options.pairs:
        write_pairs(options.pairs)
    data = options.gratings or options.pairs or options.data_dir
    found = [accuracies(case, options.case, setting, options.replicates, data) for setting in options.settings]
    rows = [row(arm, found[0][arm], found[1][arm]) for arm in found[0]]
    first, second = options.settings
    print(f"{'arm':18s} {first:>10s} {second:>10s} {'difference':>10s} {'spread':>8s}")
    for item in rows:
        values = f"{item['first']:10.2f} {item['second']:10.2f} {item['difference']:+10.2f} {item['spread']:8.2f}"
        print(f"{item['arm']:18s} {values}  {'within' if item['within'] else 'OUTSIDE'}")
    config = {name: getattr(options, name) for name in ("case", "settings", "replicates", "horizon")}
    save(options.out, facts(set_up(tf32=False)) | {"config": config, "rows": rows, "accuracies": found})


if __name__ == "__main__":
    main()
