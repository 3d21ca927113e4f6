"""docs/rewards.md: the contract of reward functions, made of the docstrings of the records that they get and give.

``lockstep reward contract`` prints it; a test holds it against the file, and the types and shapes in it against what
the environments hand over.
"""
# ruff: noqa: E501 - lines of a page

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from worker.envs.gymnasium.rewards import Transition
from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards.context import RewardContext, RewardResult, SlotState
from worker.envs.reward_plugins import RewardPlugin

_HEAD = """# What a reward function gets and gives

Written by `lockstep reward contract` from the code, and tested to be what environments hand over. How to bring one:
[Your own reward in five minutes](extending.md#your-own-reward-in-five-minutes).

A function is called once for each step of all environments of a run, in training and in evaluation. It must be pure: the same
bits for the same input, its input unchanged, no state of its own, and nothing of one environment in the reward of another.
All tensors lie on the CPU, whatever the worker's device, and no gradients are kept. E counts environments, O numbers of an
observation, C columns of an action, S slots. Rows of environments that idle (their evaluation episode is over) are handed
over too; what is returned for them is not looked at.
"""
_GIVES = """## What a function for Gymnasium returns

`(reward, components)`: the reward, [E] numbers that are paid as float32, and a dictionary {name: [E]} whose values sum to it
within 1e-5. Each component is shown as `reward/<name>_mean`. Both must be finite. `env.reward_scale` and `reward_norm` act on
what is returned; scores under `eval/native_*` are the environment's own reward.
"""
_CHECKS = """## What is checked, and when

| when | what |
| --- | --- |
| a worker starts, `lockstep reward check NAME` | 800 random transitions (of morphogenesis: 200 trajectories of 4 steps), or steps of the first of `tasks`: type, shape, finiteness, equal bits for equal input, unmodified input, components that sum to the reward, no mixing of environments, and (morphogenesis) no dependence on the order of slots |
| `lockstep reward check NAME` | whole episodes of the task under random actions, paid as training pays them |
| a specification is submitted | the mode is offered by a worker, serves `env.kind` and the task, and takes these constants |
| every step | type, device, shape and finiteness; what is wrong ends the run with cause `environment` and names mode, arm, episode and remedy |
| a run | a reward that has cost over a second and five times what its environments did is told in the log (`lockstep logs`) |

A mode that fails its check is announced with the reason, and a specification that names it is refused with that reason.
"""


class Field(NamedTuple):
    """An attribute of a record, as its docstring tells it."""

    name: str
    type: str
    unit: str
    meaning: str


def fields_of(record: type[Any]) -> list[Field]:
    """Return the attributes that the docstring of a record tells: ``name: type; unit; meaning``."""
    _, _, told = (inspect.getdoc(record) or "").partition("Attributes:\n")
    entries = re.split(r"\n(?=    \w+: )", told.rstrip())
    return [_field(" ".join(entry.split())) for entry in entries]


def _field(entry: str) -> Field:
    name, _, told = entry.partition(": ")
    return Field(name, *told.split("; ", 2))


def markdown() -> str:
    """Return docs/rewards.md."""
    parts = [
        _HEAD,
        "## The factory\n\nWhat an entry point of the group `lockstep.rewards` names: a callable with these attributes.\n",
        _table(fields_of(RewardPlugin), "| name | type | meaning | without it |"),
        "## Gymnasium: `Transition`\n\n`from worker.envs.gymnasium.rewards import Transition`. The function is called with one.\n",
        _table(fields_of(Transition)),
        _GIVES,
        "## Morphogenesis: `RewardContext`\n\n"
        "`from worker.envs.morph.rewards.context import RewardContext, RewardResult, SlotState`. "
        "The function is called with one.\n",
        _table(fields_of(RewardContext)),
        "`addressed` is [E, S] bool: the slot that the op addresses.\n",
        "### `SlotState`\n\npp: percentage points. What is not measured is NaN; let it pay nothing (`torch.nan_to_num`).\n",
        _table(fields_of(SlotState)),
        f"`Stage`: {_members(Stage)}. `Op`: {_members(Op)}.\n",
        "### What a function for morphogenesis returns: `RewardResult`\n",
        _table(fields_of(RewardResult)),
        _CHECKS,
    ]
    return "\n".join(parts)


def _table(
    fields: Iterable[Field], header: str = "| name | type and shape | unit | meaning, and when it is valid |"
) -> str:
    rows = [f"| `{field.name}` | {' | '.join(part.replace('``', '`') for part in field[1:])} |" for field in fields]
    return "\n".join([header, "| --- | --- | --- | --- |", *rows, ""])


def _members(kinds: Iterable[Any]) -> str:
    return ", ".join(f"{kind.value} {kind.name}" for kind in kinds)
