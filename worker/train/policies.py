"""Saved state of runs: checkpoint snapshots with identity, and policies that stand alone (training.md 6)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worker.checkpoint import CheckpointRefused, Snapshot, decode, differing_paths, encode, write_atomic
from worker.envs.base import HeadSpec, LockstepEnvs
from worker.envs.morph.rewards import version_of
from worker.rl.config import LearnerConfig
from worker.rl.learner import Learner, ObsLayout, Streams, build_learner
from worker.rl.nets import InputLayout
from worker.train.plan import BlockPlan, RunPlan
from worker.train.runs import Run, TrainedRun

#: Sections of a spec that a resumed run may change.
_FREE_SECTIONS = ("telemetry", "checkpoint")
_ENV = "env/"


def identity(plan: BlockPlan, run: RunPlan) -> dict[str, Any]:
    """Return what a file must say to belong to this run."""
    mode = str(run.config["reward"]["mode"])
    return {
        "experiment_id": plan.experiment_id,
        "run_id": run.run_id,
        "arm": run.arm,
        "arm_index": run.arm_index,
        "policy": run.policy,
        "replicate": plan.replicate,
        "replicate_seed": plan.replicate_seed,
        "reward_mode": mode,
        "reward_version": version_of(mode) or "environment",
    }


def snapshot(plan: BlockPlan, run: Run, env_state: Mapping[str, Any], next_round: int) -> Snapshot:
    """Return everything a resume of this run needs."""
    tensors = {f"{_ENV}{k}": v for k, v in env_state.items() if isinstance(v, Tensor)}
    scalars = {k: v for k, v in env_state.items() if not isinstance(v, Tensor)}
    if isinstance(run, TrainedRun):
        tensors |= run.learner.state_dict()
    header = {
        "identity": identity(plan, run.plan),
        "next_round": next_round,
        "spec_hash": plan.spec_hash,
        "config": run.plan.config,
        "env": scalars,
        **run.header(),
    }
    return Snapshot(tensors, header)


def restore(plan: BlockPlan, run: Run, saved: Snapshot) -> dict[str, Any]:
    """Put a snapshot back into ``run`` and return its environment state.

    Raises:
        CheckpointRefused: another run's file, or a changed spec; the message lists the paths.
    """
    ours = identity(plan, run.plan)
    wrong = differing_paths(ours, saved.header["identity"])
    if wrong:
        if wrong == ["reward_version"]:
            mode, now, version = ours["reward_mode"], ours["reward_version"], saved.header["identity"]["reward_version"]
            raise CheckpointRefused(
                f"reward {mode!r} of arm {run.plan.arm!r} is version {now!r}, and was {version!r} up to round "
                f"{saved.header['next_round']}: install that one again and restart the worker, or clone the experiment"
            )
        told = [f"{p}: file {saved.header['identity'].get(p)!r}, run {ours.get(p)!r}" for p in wrong]
        raise CheckpointRefused(f"checkpoint of another run: {'; '.join(told)}")
    changed = differing_paths(run.plan.config, saved.header["config"], _FREE_SECTIONS)
    if changed:
        raise CheckpointRefused(
            f"the spec changed at {', '.join(changed)}; start a new experiment, or restore these values"
        )
    run.diverged = saved.header["diverged"]
    run.detectors.load_state_dict(saved.header["detectors"])
    if isinstance(run, TrainedRun):
        run.learner.load_state_dict(saved.tensors)
    tensors = {k.removeprefix(_ENV): v for k, v in saved.tensors.items() if k.startswith(_ENV)}
    return {**saved.header["env"], **tensors}


def save_policy(root: Path, plan: BlockPlan, run: TrainedRun, envs: LockstepEnvs) -> Path:
    """Write ``policy/<arm>/r<replicate>.safetensors``: weights, normalisers, network description, config."""
    learner = run.learner
    tensors = {"policy/flat": learner.flat.data, **learner.normaliser_state()}
    spec = envs.obs_spec
    tensors |= {"obs/continuous": spec.continuous, "obs/sentinel": spec.sentinel}
    header = {
        "identity": identity(plan, run.plan),
        "spec_hash": plan.spec_hash,
        "config": run.plan.config,
        "inputs": [spec.num_features, spec.num_ids, spec.id_vocab, spec.id_dim],
        "images": spec.images,
        "heads": [[h.name, h.size, h.parents, h.relevant_ops, h.canonical, h.bounds] for h in envs.heads],
        "parameters": {name: list(p.shape) for name, p in learner.net.named_parameters()},
    }
    path = root / "policy" / run.plan.arm / f"r{plan.replicate}.safetensors"
    write_atomic(path, encode(Snapshot(tensors, header)))
    return path


def load_policy(path: Path, device: torch.device) -> tuple[Learner, dict[str, Any]]:
    """Return a saved policy, ready to act, and its header."""
    saved = decode(path.read_bytes())
    header = dict(saved.header)
    heads = [_head(*fields) for fields in header["heads"]]
    images = tuple((c, h, w) for c, h, w in header.get("images", ()))  # absent in files from before images
    features, ids, vocabulary, dimension = header["inputs"]
    inputs = InputLayout(features, ids, vocabulary, dimension, images)
    layout = ObsLayout(inputs, saved.tensors["obs/continuous"], saved.tensors["obs/sentinel"])
    cfg = LearnerConfig.parse(header["config"])
    streams = Streams(int(header["identity"]["replicate_seed"]))
    learner = build_learner(cfg, layout, list(heads), streams, num_envs=1, device=device)
    learner.flat.data.copy_(saved.tensors["policy/flat"])
    learner.load_normalisers(saved.tensors)
    return learner, header


def _head(
    name: str,
    size: int,
    parents: list[str],
    ops: list[int] | None,
    canonical: int,
    bounds: list[list[float]] | None = None,  # absent in files from before Gaussian heads
) -> HeadSpec:
    pairs = None if bounds is None else tuple((low, high) for low, high in bounds)
    return HeadSpec(name, size, tuple(parents), None if ops is None else tuple(ops), canonical, pairs)
