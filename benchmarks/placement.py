"""Two arms through the whole service: both on one GPU (or CPU slot), and each on its own, in turn.

    python -m benchmarks.placement --match reference --n-envs 16 --device gpu --out FILE
    python -m benchmarks.placement --match tiny --device cpu --rounds 5

The order is shared, split, split, shared for each repeat. Timed is the span between the receipts of the first
round and of the last but one, by the server's clock: barriers, uploads and storing are in it; start, warm-up
and the final evaluation are not. An arm that is split trains alone on its device, so that

- ``shared / split`` is the gain of a second device (performance.md 7: at least 1.9 with 16 environments), and
- ``shared / (2 split)`` is what two arms on one device cost beside the sum of the arms alone (at most 1.10), and
- ``overlap_split`` is the part of a round in which both devices are at work (median; at least 0.9).

Every round's digest (parameters, optimiser, normalisers, actions) must be the same in all legs: gate I4.
What is known is written after every leg (``"complete": false`` until the last).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import facts_alone, images, save
from benchmarks.overhead import spec_of
from benchmarks.served import config_of, end_after, parser, train
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse

PLACEMENTS = {"shared": "shared_device", "split": "one_per_device"}


def summary(legs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the seconds of all legs; once both ways were timed, medians, both ratios and whether all bits agree."""
    seconds = {name: [leg["seconds"] for leg in found] for name, found in legs.items()}
    if not all(legs.values()):
        return {"seconds": seconds}
    shared, split = (statistics.median(seconds[name]) for name in ("shared", "split"))
    first, *others = [leg["digests"] for found in legs.values() for leg in found]
    return {
        "seconds": seconds,
        "shared_s": shared,
        "split_s": split,
        "gain_of_second_device": shared / split,
        "cost_of_sharing": shared / (2.0 * split),
        "overlap_split": statistics.median(leg["overlap"] for leg in legs["split"]),
        "rounds_compared": len(first),
        "bits_equal": all(other == first for other in others),
    }


def compare(options: argparse.Namespace, spec: Mapping[str, Any], data_dir: Path | None) -> None:
    """Train the block in turn on one device and on two; print and save after each leg."""
    report = facts_alone() | {"config": config_of(options) | {"n_envs": parse(spec).spec.env.n_envs}}
    legs: dict[str, list[dict[str, Any]]] = {name: [] for name in PLACEMENTS}
    order = ["shared", "split", "split", "shared"] * options.repeats
    for number, name in enumerate(order, start=1):
        wanted = merge(spec, {"lockstep": {"placement": PLACEMENTS[name]}})
        devices = [options.device] * (2 if name == "split" else 1)
        legs[name].append(train(wanted, devices, options.port, data_dir))
        print(f"{name:7s} {legs[name][-1]['seconds']:8.2f} s for {options.rounds - 2} rounds", flush=True)
        print(json.dumps(summary(legs)), flush=True)
        save(options.out, report | {"complete": number == len(order)} | summary(legs))


def options_of() -> argparse.Namespace:
    """Read the command line."""
    options = parser(__doc__, 7493)
    options.add_argument("--match", default="reference", help="a preset, or the work unit: reference, tiny")
    options.add_argument("--n-envs", type=int)
    options.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    options.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--repeats", type=int, default=1)
    return options.parse_args()


def main() -> None:
    options = options_of()
    end_after(options.limit)
    own = {"precision": {"host": options.precision}, "engine": {"path": options.path}}
    spec = merge(spec_of(options.match, options.rounds, 2, options.n_envs), own)
    with images(options.match) as data_dir:
        compare(options, spec, data_dir)


if __name__ == "__main__":
    main()
