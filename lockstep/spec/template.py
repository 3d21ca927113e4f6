"""A first specification for somebody's own question, as commented YAML: what ``lockstep spec init`` writes."""

from __future__ import annotations

import json
import shlex
from typing import Any

from lockstep.quoting import quoted
from lockstep.spec.environments.families import FAMILIES, family_of
from lockstep.spec.metrics import default_primary, find_metric
from lockstep.spec.presets import PRESETS
from lockstep.spec.reference import fields
from lockstep.spec.resolve import parse
from lockstep.spec.rules import check
from lockstep.spec.tasks import get_task
from lockstep.spec.text.problems import InvalidSpecError, Problem, nearest
from lockstep.spec.text.reading import load_text

_HEAD = """# Two arms, each trained experiment.replicates times. `lockstep spec check FILE` needs no server.
# With one (`lockstep serve`) `lockstep plan FILE` says what it costs and finds, `lockstep submit FILE` runs it.
# Every field: `lockstep spec explain NAME`, or docs/reference.md."""


def template(*, preset: str | None = None, task: str | None = None, env_id: str | None = None) -> str:
    """Return a specification that is accepted as it stands.

    Args:
        preset: values it builds on; default: those of the family.
        task: a task of morphogenesis.
        env_id: an environment registered with Gymnasium or by a plug-in.

    Raises:
        InvalidSpecError: an unknown preset or task, a task and an environment at once, or what does not fit together.
    """
    if task is not None and env_id is not None:
        raise _refused("/env", "name a task of morphogenesis or an environment, not both", "leave one of them out")
    if preset is not None and preset not in PRESETS:
        raise _refused("/preset", f"unknown preset {quoted(preset)}", nearest(preset, PRESETS))
    if preset is None:
        preset = _preset_of(env_id) if env_id is not None else "digits_cpu" if task is None else None
    if task is not None:
        _check_task(task)
    if preset is not None and (task or env_id) is not None:
        _check_family(preset, "gymnasium" if task is None else "morphogenesis")
    text = "\n".join(_lines(preset, task, env_id)) + "\n"
    problems, _ = check(parse(load_text(text)))
    if problems:
        raise InvalidSpecError(problems)
    return text


def _preset_of(env_id: str) -> str:
    return next((preset for start, preset in _BY_ID.items() if env_id.startswith(start)), "gym_classic")


def _kind(preset: str) -> str:
    return str(PRESETS[preset].get("env", {}).get("kind", "morphogenesis"))


def _check_family(preset: str, kind: str) -> None:
    if _kind(preset) != kind:
        fitting = ", ".join(name for name in PRESETS if _kind(name) == kind)
        raise _refused("/preset", f"preset {preset} is for env.kind {_kind(preset)}", f"use one of {fitting}")


def _check_task(task: str) -> None:
    try:
        get_task(task)
    except ValueError as error:
        raise _refused("/env/task", str(error), "choose one of them") from error


def _refused(at: str, message: str, remedy: str) -> InvalidSpecError:
    return InvalidSpecError([Problem(at, "template", message, remedy)])


#: Tasks of Gymnasium whose actions are real numbers, by the beginning of their ids.
_CONTINUOUS = (
    "Ant-", "BipedalWalker", "HalfCheetah-", "Hopper-", "Humanoid", "InvertedDoublePendulum-", "InvertedPendulum-",
    "LunarLanderContinuous-", "MountainCarContinuous-", "Pendulum-", "Pusher-", "Reacher-", "Swimmer-", "Walker2d-",
)  # fmt: skip
#: The presets of tasks by the beginning of their ids.
_BY_ID = {"ALE/": "gym_atari", "MinAtar/": "gym_image_small", **dict.fromkeys(_CONTINUOUS, "gym_continuous")}
#: The least that an episode can return, from the rewards and limits that Gymnasium documents.
_LEAST_RETURNS = {
    "Acrobot-v1": -500.0,
    "MountainCar-v0": -200.0,
    "MountainCarContinuous-v0": -100.0,
    "Pendulum-v1": -3300.0,
}
_KNOWN_AT_ZERO = ("CartPole-", "MinAtar/")
#: Differences of returns that are usually thought worth acting on, by the beginning of a task's id.
_USUAL_SESOI = {
    "Acrobot-": 10.0,
    "CartPole-v0": 10.0,
    "CartPole-": 25.0,
    "InvertedPendulum-": 50.0,
    "MinAtar/": 1.0,
    "MountainCar-": 5.0,
    "MountainCarContinuous-": 5.0,
    "Pendulum-": 20.0,
}
#: The task of a template by preset, where CartPole-v1 is none for it.
_EXAMPLES = {
    "gym_atari": "ALE/Breakout-v5",
    "gym_image_small": "MinAtar/Breakout-v1",
    "gym_continuous": "Pendulum-v1",
}


def _lines(preset: str | None, task: str | None, env_id: str | None) -> list[str]:
    values = dict(PRESETS[preset]) if preset else {}
    kind = _kind(preset) if preset else "morphogenesis"
    if env_id is None and kind == "gymnasium":
        env_id = _EXAMPLES.get(preset or "", "CartPole-v1")
    metric = default_primary(family_of(kind).name)
    unit = getattr(find_metric(metric), "unit", "")
    rounds = values.get("budget", {}).get("rounds", 100)
    lines = [_HEAD, "experiment:", _line("experiment.name", "my first comparison")]
    lines += [_line("experiment.replicates", 10), _line("experiment.seed", 42)]
    lines += [f"{f'preset: {preset}':36}# its values lie under the ones below: lockstep spec presets"] if preset else []
    lines += ["env:", *([_line("env.kind", kind), _line("env.id", env_id)] if env_id is not None else [])]
    lines += [_line("env.task", task)] if task else []
    lines += [_line("env.n_envs", values.get("env", {}).get("n_envs", 8))]
    lines += ["budget:", _line("budget.rounds", rounds)]
    lines += ["arms:", *_arms(kind, values.get("ppo", {}).get("lr"))]
    lines += ["analysis:", *_scale(env_id), _line("analysis.primary", metric)]
    return [*lines, _sesoi(env_id, unit), _floor(env_id)]


def _scale(env_id: str | None) -> list[str]:
    """Return the comment that leads to the scale of a task's returns, none where it is known."""
    if env_id is None or (_usual_sesoi(env_id) is not None and _is_least_known(env_id)):
        return []
    return [
        "  # set analysis.sesoi and analysis.failure.floor to the scale of this task's returns:",
        f"  # `lockstep env check {shlex.quote(env_id)}` measures random actions and prints both, ready to paste",
    ]


def _usual_sesoi(env_id: str) -> float | None:
    return next((value for start, value in _USUAL_SESOI.items() if env_id.startswith(start)), None)


def _is_least_known(env_id: str) -> bool:
    return env_id in _LEAST_RETURNS or env_id.startswith(_KNOWN_AT_ZERO)


def _sesoi(env_id: str | None, unit: str) -> str:
    """Return the line of the smallest effect of interest."""
    usual = 2.0 if env_id is None else _usual_sesoi(env_id)
    told = f"the smallest difference worth acting on, in {'units of the return' if env_id else unit}"
    chosen = "CHOOSE it: " if usual is None else "usual; "
    return f"{f'  sesoi: {2.0 if usual is None else usual}':36}# {chosen}{told}"


def _floor(env_id: str | None) -> str:
    """Return the line of the score of a run that diverges."""
    least = 0.0 if env_id is None else _LEAST_RETURNS.get(env_id, 0.0)
    is_known = env_id is None or _is_least_known(env_id)
    told = "the worst the metric can be" if is_known else "CHOOSE it: no return of this task may be lower"
    return f"{f'  failure: {{floor: {least}}}':36}# score of a run that diverges: {told}"


def _arms(kind: str, lr: float | None) -> list[str]:
    """Return two arms that ask what most people of the family ask."""
    modes = FAMILIES[kind].reward_modes
    if len(modes) > 1:
        return [f"  - {{label: {mode}, reward: {mode}}}" for mode in ("shaped", "sparse")]
    faster = 1e-3 if lr is None or lr < 1e-3 else 2 * lr  # another than the preset's own
    return ["  - {label: base}", f"  - {{label: faster, overrides: {{ppo.lr: {json.dumps(faster)}}}}}"]


def _line(path: str, value: Any) -> str:
    """Return a field of a section with its own description behind it."""
    known = {field.path: field for field in fields()}
    described = known[path].description if path in known else "The one metric that decides"
    is_plain = isinstance(value, str) and path != "experiment.name" and _reads_as_it_is(value)
    written = value if is_plain else json.dumps(value, ensure_ascii=False)
    return f"{f'  {path.rpartition(chr(46))[2]}: {written}':36}# {described}"


def _reads_as_it_is(text: str) -> bool:
    """Return whether YAML reads text without quotes as that text."""
    try:
        return load_text(f"a: {text}") == {"a": text}
    except InvalidSpecError:
        return False
