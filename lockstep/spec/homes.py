"""Which experiments a worker with a GPU trains on its host: small policies whose simulators live there (ADR 90).

A guess from the specification, for the scheduler; what observations hold images shows in the worker alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.spec.algorithms import ALGORITHMS
from lockstep.spec.environments.families import family_of
from lockstep.spec.resolve import ResolvedSpec

#: Units of a layer up to which a policy is small, and those of an LSTM.
_SMALL_HIDDEN, _SMALL_LSTM = 256, 128


def is_small(config: Mapping[str, Any]) -> bool:
    """Return whether a step of an arm's policy takes less time on the host than its way to a GPU and back."""
    net = config["net"]
    fits = net["hidden"] <= _SMALL_HIDDEN and (net["body"] == "mlp" or net["lstm_hidden"] <= _SMALL_LSTM)
    return bool(fits and config["precision"]["policy"] == "fp32")


def is_at_home(resolved: ResolvedSpec, *, is_batched: bool) -> bool:
    """Return whether an experiment needs no GPU, as far as its specification tells.

    Args:
        resolved: the experiment.
        is_batched: whether its environment is a batched simulator, which may compute on the GPU.
    """
    env, family = resolved.spec.env, family_of(resolved.spec.env.kind)
    learnt = [arm.config for arm in resolved.arms if arm.policy in ALGORITHMS]
    if is_batched or not family.on_host or (learnt and family.shows_images(env)):
        return False
    return all(is_small(config) and config["net"].get("encoder") is None for config in learnt)
