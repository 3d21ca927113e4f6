"""A host of the size of a grafted one, for the control that spends the parameters on width.

The same parameter count within 2 %, reached by scaling the channels of every block (CNN) or the MLP (LM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from lockstep.spec.tasks import CnnShape, HostShape, Topology
from worker.envs.morph.network.blend import Operator, graft_params
from worker.envs.morph.network.blueprints import blueprint_id
from worker.envs.morph.task.config import EnvConfig

TOLERANCE = 0.02
_STEPS = 60


def static_params(config: EnvConfig, static_set: Mapping[str, str]) -> int:
    """Return the parameters of the host with the grafts of ``static_set`` {slot: blueprint}."""
    slots = {slot.id: slot for slot in config.task.host.slots()}
    topology: Topology = "lm" if config.task.is_text else "cnn"
    total = config.task.host.params()
    for slot_id, name in static_set.items():
        if slot_id not in slots:
            raise ValueError(f"static_set slot {slot_id!r} does not exist; use one of {', '.join(slots)}")
        channels = slots[slot_id].channels
        total += graft_params(blueprint_id(name), topology, channels, Operator.ADD)
    return total


def static_shape(config: EnvConfig, static_set: Mapping[str, str] | None) -> HostShape:
    """Return a host shape with the parameters of the grafted host, within 2 %.

    Raises:
        ValueError: no set was given, or no width comes close enough.
    """
    if not static_set:
        raise ValueError("policy static_wide needs static_set {slot: blueprint} to know its size")
    target = static_params(config, static_set)
    shape = _widest(config.task.host, target)
    reached = shape.params()
    if abs(reached - target) > TOLERANCE * target:
        raise ValueError(
            f"no widened {config.task.name} host has {target} parameters within 2 % (nearest {reached}); "
            "choose another static_set"
        )
    return shape


def _widest(shape: HostShape, target: int) -> HostShape:
    """Return the shape nearest to ``target``: scale by bisection, then adjust each width a little."""
    low, high = 0.0, 64.0
    for _ in range(_STEPS):
        factor = (low + high) / 2.0
        low, high = (factor, high) if _scaled(shape, factor).params() < target else (low, factor)
    near = _scaled(shape, low)
    candidates = [near, _scaled(shape, high)]
    if isinstance(near, CnnShape):
        candidates += _neighbours(near)
    return min(candidates, key=lambda candidate: abs(candidate.params() - target))


def _scaled(shape: HostShape, factor: float) -> HostShape:
    if isinstance(shape, CnnShape):
        widths = tuple(max(1, round(shape.channels(i) * factor)) for i in range(shape.blocks))
        return replace(shape, widths=widths)
    return replace(shape, mlp_width=max(1, round(shape.hidden * factor)))


def _neighbours(shape: CnnShape) -> list[HostShape]:
    """Return shapes whose blocks are up to two channels wider or narrower."""
    options = [range(max(1, width - 2), width + 3) for width in shape.widths]
    return [replace(shape, widths=widths) for widths in product(*options)]
