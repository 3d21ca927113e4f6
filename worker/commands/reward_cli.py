"""`lockstep reward`: which reward modes are installed here, and does one keep its contract? No server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

from pydantic import ValidationError

from lockstep import plugins
from lockstep.spec.environments.families import FAMILIES
from lockstep.spec.rewards import Reward
from lockstep.spec.rules import other_task
from lockstep.spec.text.faults import problems_of
from lockstep.spec.text.problems import Problem, nearest, pointer
from lockstep.spec.text.schemas import flat_problems
from worker import capabilities
from worker.commands.reward_reference import markdown
from worker.envs import reward_plugins
from worker.envs.families import load
from worker.envs.family import Trial
from worker.envs.faults import RAISED, raised_in
from worker.envs.paid import advice
from worker.supervision.options import json_object, within

_WRONG_CALL = 2
_GAMMA = 0.99
#: A function that takes so many times what its environments take is named slow, if it takes so many ms a step at all.
_SLOW_TIMES, _SLOW_MILLISECONDS = 5.0, 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 a mode cannot be paid, 2 wrongly called."""
    options = parse(arguments)
    if options.command == "contract":
        sys.stdout.write(markdown())
        return 0
    if options.command == "list":
        found = list(_modes())
        sys.stdout.write(json.dumps(found, indent=2) + "\n" if options.json else "".join(map(_line, found)))
        return 0
    try:
        kwargs, constants = json_object("--kwargs", options.kwargs), json_object("--constants", options.constants)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return _WRONG_CALL
    asked = Asked(options.name, options.env, kwargs, constants, options.seconds)
    try:
        checked = check(asked)
    except RAISED as error:  # code of others
        checked = {"name": options.name, "ok": False, "refused": _told(error, options.name)}
    sys.stdout.write(json.dumps(checked, indent=2) + "\n" if options.json else "\n".join(_lines(checked)) + "\n")
    return 0 if checked["ok"] else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="lockstep reward", description="Reward modes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    lists = commands.add_parser("list", help="list the built-in modes and those of installed packages")
    checks = commands.add_parser("check", help="run a worker's check of a mode, and the mode on some steps of a task")
    checks.add_argument("name", help="as in reward.mode")
    checks.add_argument("--env", metavar="ENV_ID", help="play this env.id or env.task; default: what the mode names")
    checks.add_argument(
        "--kwargs", default="{}", help="keyword arguments of the environment as JSON, as in env.kwargs (default: {})"
    )
    checks.add_argument(
        "--constants", default="{}", help="constants of the mode as JSON, as in the section reward (default: {})"
    )
    told = "play whole episodes, for at most so many seconds (default: %(default)s)"
    checks.add_argument("--seconds", type=within(0.1, 3600.0), default=5.0, metavar="S", help=told)
    for command in (lists, checks):
        command.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("contract", help="print docs/rewards.md: what a function gets and gives")
    return parser.parse_args(arguments)


def _modes() -> Iterator[dict[str, Any]]:
    for family in FAMILIES.values():
        for name in family.reward_modes:
            yield {"name": name, "package": "built in", "env_kinds": [family.name]}
    clashes = plugins.clashes(plugins.REWARDS, plugins.builtin_rewards())
    for point in plugins.installed(plugins.REWARDS):
        facts = {"defect": clashes[point.name]} if point.name in clashes else capabilities.announced(point)
        facts.pop("schema", None)
        yield {"name": point.name, "package": plugins.package_of(point), **facts}


def _line(mode: dict[str, Any]) -> str:
    serves = ", ".join(mode.get("env_kinds", ())) or "-"
    tasks = f", for {', '.join(mode['tasks'])}" if mode.get("tasks") else ""
    told = f"  cannot be used: {mode['defect']}" if "defect" in mode else ""
    return f"{mode['name']:20} {serves + tasks:24} {mode['package']}{told}\n"


@dataclass(frozen=True)
class Asked:
    """A mode to check: its name, the task to play (None: its own) with arguments, constants, and seconds to play."""

    name: str
    env: str | None
    kwargs: dict[str, Any]
    constants: dict[str, Any]
    seconds: float


def check(asked: Asked) -> dict[str, Any]:
    """Return what was found out about a mode; what keeps it from being paid raises."""
    clash = plugins.clashes(plugins.REWARDS, plugins.builtin_rewards()).get(asked.name)
    if clash is not None:
        raise plugins.NameTaken(clash)
    found: dict[str, Any] = {"name": asked.name, "package": "built in"}
    builtin = [family.name for family in FAMILIES.values() if asked.name in family.reward_modes]
    kinds, tasks = builtin, []
    if builtin:
        _refuse(_builtin_problems(asked))
    else:
        point = _point(asked.name)
        found["package"] = plugins.package_of(point)
        plugin = reward_plugins.read(asked.name, capabilities.loaded(point))
        kinds, tasks = [*plugin.env_kinds], [*plugin.tasks]
        capabilities.check_reward(plugin)
        _refuse(flat_problems(plugin.schema, asked.constants, partial(pointer, "reward")))
    task = asked.env or next(iter(tasks), None)
    found |= {"env_kinds": kinds, "tasks": tasks, "ok": True, "task": task}
    return found if task is None else found | _played(asked, kinds, tasks, task)


def _builtin_problems(asked: Asked) -> Iterator[Problem]:
    """Yield what a specification would be refused for: unknown constants, and values that they may not have."""
    known: dict[str, Any] = {"properties": {key: {} for key in Reward.model_fields}}
    yield from flat_problems(known, asked.constants, partial(pointer, "reward"))
    section = {**asked.constants, "mode": asked.name}
    try:
        Reward.model_validate_json(json.dumps(section))
    except ValidationError as error:
        yield from problems_of(Reward, section, error, root=("reward",))


def _told(error: BaseException, mode: str) -> str:
    """Return why a mode cannot be paid and where its code raised, without the advice to run this very check."""
    return capabilities.reason(error).replace(advice(mode), "") + raised_in(error)


def _refuse(problems: Iterable[Problem]) -> None:
    told = "; ".join(map(str, problems))
    if told:
        raise capabilities.Unfit(told)


def _point(name: str) -> EntryPoint:
    points = {point.name: point for point in plugins.installed(plugins.REWARDS)}
    if name not in points:
        modes = {mode for family in FAMILIES.values() for mode in family.reward_modes}
        raise capabilities.Unfit(f"no reward mode {name!r} is installed here; {nearest(name, {*modes, *points})}")
    return points[name]


def _played(asked: Asked, kinds: Sequence[str], tasks: Sequence[str], task: str) -> dict[str, Any]:
    kind = capabilities.kind_of(task)
    if kind not in kinds:
        raise capabilities.Unfit(f"--env {task} is a task of {kind}; {asked.name!r} serves {' and '.join(kinds)}")
    if tasks and task not in tasks:
        raise capabilities.Unfit(f"--env {task}: {other_task(asked.name, tasks, task)}")
    family = load(kind)
    section = {"id": task, "task": task, "kwargs": asked.kwargs}
    trial = family.try_reward(family.reward(asked.name, asked.constants, _GAMMA, section), section, asked.seconds)
    _, steps, num_envs = trial.rows.shape
    return {
        "steps": steps,
        "episodes": trial.episodes,
        "seconds": asked.seconds,
        "environments": num_envs,
        "paid": {name: _range(row) for name, row in zip(["reward", *trial.names], trial.rows, strict=True)},
        "reward_milliseconds": 1000.0 * trial.scoring / steps,
        "environments_milliseconds": 1000.0 * trial.stepping / steps,
        "slow": _is_slow(trial),
    }


def _range(row: Any) -> dict[str, float]:
    row = row + 0.0  # no -0
    return {"mean": float(row.mean()), "least": float(row.min()), "greatest": float(row.max())}


def _is_slow(trial: Trial) -> bool:
    _, steps, _ = trial.rows.shape
    return trial.scoring > _SLOW_TIMES * trial.stepping and 1000.0 * trial.scoring / steps > _SLOW_MILLISECONDS


def _lines(checked: dict[str, Any]) -> Iterator[str]:
    name = checked["name"]
    if not checked["ok"]:
        yield f"refused: {checked['refused']}"
        yield f"{name} cannot be paid as it is"
        return
    yield f"contract: kept ({checked['package']}, serves {', '.join(checked['env_kinds'])})"
    if checked["task"] is None:
        yield f"plays: nothing; `lockstep reward check {name} --env ENV_ID` shows what it pays in a task"
    else:
        yield from _played_lines(checked)
    yield f"{name} can be paid"


def _played_lines(checked: dict[str, Any]) -> Iterator[str]:
    num_envs = checked["environments"]
    played = f"{checked['steps']} steps of {num_envs} environments of {checked['task']} under random actions"
    yield f"plays: {played}, {checked['episodes']} whole episodes"
    if checked["episodes"] < num_envs:
        remedy = f"let it play for longer than --seconds {checked['seconds']:g}"
        yield f"warning: episodes: not every environment came to an end, so what is paid late was not seen; {remedy}"
    for part, paid in checked["paid"].items():
        yield f"  {part:16} mean {paid['mean']:.4g}, from {paid['least']:.4g} to {paid['greatest']:.4g}"
    reward, stepping = checked["reward_milliseconds"], checked["environments_milliseconds"]
    yield f"time: a step of the reward takes {reward:.2f} ms, of its {num_envs} environments {stepping:.2f} ms"
    if checked["slow"]:
        remedy = "compute on whole tensors [E], not on one environment after the other"
        yield f"warning: time: the reward takes {reward / stepping:.0f} times as long as its environments; {remedy}"


if __name__ == "__main__":
    sys.exit(main())
