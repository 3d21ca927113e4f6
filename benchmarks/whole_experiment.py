"""A whole valid experiment on one device: two arms x ten replicates, from submission to the final report.

    python -m benchmarks.whole_experiment --device gpu --rounds 8 --path fused --precision bf16 --out FILE

The reference compares two arms by one run each. Its time for the same rounds and episode length is derived from
its published measurement (performance.md 2): 29.4 s a round of 40 epochs of 4 environments, for two arms one
after the other, and 27 s of set-up once. The ratio of ours to that is to be at most 1.2.

After every block it prints where the seconds of the block went and writes what is known (``"complete": false``
until the report is there); at the end, also when it is cut off, the medians over the blocks. Fewer than six
replicates allow no test: then only descriptive figures are asked for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.machine import MATCHES, facts_alone, images, save, work_unit
from benchmarks.served import Service, config_of, end_after, parser, service
from benchmarks.timeline import METRICS, Timeline
from lockstep.client import Client
from lockstep.spec.presets import merge
from lockstep.spec.resolve import parse

#: Seconds of the reference on an H100: a round of one arm with 4 environments, and set-up.
REFERENCE_ROUND_S, REFERENCE_SETUP_S = 29.4, 27.0


def spec_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return two reward functions, ten replicates, judged by the accuracy of a frozen policy on test images."""
    own = {
        "experiment": {"name": "two rewards, ten replicates", "replicates": options.replicates},
        "precision": {"host": options.precision},
        "engine": {"path": options.path},
        "budget": {"rounds": options.rounds},
        "eval": {"every_rounds": options.rounds, "episodes": 4},
        "arms": [{"label": "shaped", "reward": "shaped"}, {"label": "simplified", "reward": "simplified"}],
        "analysis": {
            "primary": {"metric": "eval/accuracy", "aggregate": "final_mean", "direction": "max"},
            "sesoi": 2.0,
            "failure": {"floor": 0.0},
            **({"inference": "none"} if options.replicates < 6 else {}),
        },
    }
    return merge(work_unit(options.match), own)


def conduct(running: Service, options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the experiment; return its seconds, its timeline and what the report says.

    Args:
        running: a server with one worker.
        options: of the command line.
        keep: called with the timeline after every block, and once more when the experiment ends or is cut off.

    Raises:
        SystemExit: the experiment did not succeed.
    """
    client, began = running.client, time.perf_counter()
    experiment_id = client.submit(spec_of(options))["id"]
    timeline = Timeline(client.show(experiment_id)["created_at"])
    try:
        with running.explained(experiment_id):
            status = follow(client, experiment_id, timeline, keep)
            report = client.report(experiment_id)
            seconds = time.perf_counter() - began
            timeline.settle(client)
            if status != "succeeded":
                raise SystemExit(f"the experiment is {status}")
    finally:
        print(timeline.table(), flush=True)
        keep(timeline.summary())
    runs = client.runs(experiment_id)
    done = sum(run["status"] == "succeeded" for run in runs)
    found = {"seconds": seconds, "runs": len(runs), "runs_succeeded": done, "verdict": report["verdict"]}
    summary = timeline.summary()
    return found | {"rate": rates(options, summary["blocks"])} | summary


def rates(options: argparse.Namespace, blocks: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the images that hosts trained on for each second after the first block's end; None for a single block.

    ``train_images_s`` counts those of training alone; ``all_images_s`` those of the evaluation too: a frozen policy
    is judged by hosts that are trained as long as in a round, those of both arms and the ungrafted ones.
    """
    if len(blocks) < 2:
        return None
    arms, others = parse(spec_of(options)).arms, len(blocks) - 1
    env, judged = arms[0].config["env"], arms[0].config["eval"]["episodes"]
    episode = env["horizon"] * env["batches_per_step"] * env["batch_size"]
    training = options.rounds * len(arms) * env["n_envs"] * episode
    judging = (len(arms) + 1) * judged * episode
    seconds = blocks[-1]["ended_after"] - blocks[0]["ended_after"]
    return {"train_images_s": others * training / seconds, "all_images_s": others * (training + judging) / seconds}


def follow(client: Client, experiment_id: str, timeline: Timeline, keep: Callable[[dict[str, Any]], None]) -> str:
    """Follow the experiment to its end, print and keep each block that ends; return the status."""
    for frame in client.watch(experiment_id, metrics=list(METRICS)):
        if frame["type"] == "snapshot":
            timeline.begin(frame, client.call("GET", f"experiments/{experiment_id}/events")["items"])
        ended = timeline.add(frame)
        if ended is not None:
            timeline.read_workers(client)
            print(timeline.line(ended), flush=True)
            keep(timeline.summary())
    return str(frame["status"])


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    options = parser(__doc__, 7494)
    options.add_argument("--match", choices=sorted(MATCHES), default="reference")
    options.add_argument("--replicates", type=int, default=10)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    options.add_argument("--path", choices=("auto", "eager", "captured", "fused"), default="auto")
    return options.parse_args(arguments)


def main() -> None:
    options = options_of()
    end_after(options.limit)
    head = facts_alone() | {"config": config_of(options)}

    def keep(known: dict[str, Any]) -> None:
        save(options.out, head | {"complete": False} | known)

    keep({"blocks": []})
    with images(options.match) as data_dir, service(options.port) as running:
        running.start_workers([options.device], data_dir)
        found = conduct(running, options, keep)
        found["reference_s"] = REFERENCE_SETUP_S + 2 * options.rounds * REFERENCE_ROUND_S
        found["ratio"] = found["seconds"] / found["reference_s"]
        keep(found | {"complete": True})
        print(json.dumps({name: value for name, value in found.items() if name != "blocks"}, indent=1), flush=True)


if __name__ == "__main__":
    main()
