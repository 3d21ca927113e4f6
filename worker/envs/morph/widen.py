"""A host of the size of a grafted one, for the control that spends the parameters on width.

The same parameter count within 2 %, reached by a fractional base (CNN) or a wider MLP (LM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.envs.morph.blend import Operator, graft_params
from worker.envs.morph.blueprints import Topology, blueprint_id
from worker.envs.morph.config import EnvConfig
from worker.envs.morph.hosts import build_host
from worker.envs.morph.tasks import CnnShape, HostShape

TOLERANCE = 0.02
_STEPS = 60


def static_params(config: EnvConfig, static_set: Mapping[str, str]) -> int:
    """Return the parameters of the host with the grafts of ``static_set`` {slot: blueprint}."""
    slots = {slot.id: slot for slot in config.task.host.slots()}
    topology: Topology = "lm" if config.task.is_text else "cnn"
    total = host_params(config.task.host)
    for slot_id, name in static_set.items():
        if slot_id not in slots:
            raise ValueError(f"static_set slot {slot_id!r} does not exist; use one of {', '.join(slots)}")
        channels = slots[slot_id].channels
        total += graft_params(blueprint_id(name), topology, channels, Operator.ADD)
    return total


def host_params(shape: HostShape) -> int:
    """Return the parameters of a host, tied weights once."""
    return sum(param.numel() for param in build_host(shape).parameters())


def static_shape(config: EnvConfig, static_set: Mapping[str, str] | None) -> HostShape:
    """Return a host shape with the parameters of the grafted host, within 2 %.

    Raises:
        ValueError: no set was given, or no width comes close enough.
    """
    if not static_set:
        raise ValueError("policy static_wide needs static_set {slot: blueprint} to know its size")
    target = static_params(config, static_set)
    shape = _widest(config.task.host, target)
    reached = host_params(shape)
    if abs(reached - target) > TOLERANCE * target:
        raise ValueError(
            f"no widened {config.task.name} host has {target} parameters within 2 % (nearest {reached}); "
            "choose another static_set"
        )
    return shape


def _widest(shape: HostShape, target: int) -> HostShape:
    """Bisect the width; the count grows with it, so keep the nearest shape seen."""
    low, high = 1.0, 64.0
    best = shape
    for _ in range(_STEPS):
        factor = (low + high) / 2.0
        wider = _scaled(shape, factor)
        count = host_params(wider)
        if abs(count - target) < abs(host_params(best) - target):
            best = wider
        low, high = (factor, high) if count < target else (low, factor)
    return best


def _scaled(shape: HostShape, factor: float) -> HostShape:
    if isinstance(shape, CnnShape):
        return replace(shape, base=shape.base * factor)
    return replace(shape, mlp_width=round(shape.hidden * factor))
