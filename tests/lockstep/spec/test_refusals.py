"""Every refusal of a specification: said once, it names a field that exists, and doing what it says is accepted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli.people import app as command
from app.main import create_app
from app.settings import Settings
from lockstep.protocol import RegisterRequest, RoundRequest
from lockstep.spec.presets import merge
from lockstep.spec.reference import fields
from lockstep.spec.resolve import Spec, parse
from lockstep.spec.rules import Registered, all_problems, check
from lockstep.spec.text.faults import FOREIGN, FORMS, paths_of, remedy_for_key
from lockstep.spec.text.problems import InvalidSpecError, Problem
from tests.factories import cartpole_spec, tiny_spec

ROOT = Path(__file__).parents[3]
REGISTERED = Registered(
    {
        "thrifty": {
            "env_kinds": ["morphogenesis"],
            "schema": {"properties": {"price": {"type": "number"}}},
            "workers": ["w0", "w1"],
        },
        "broken": {"schema": {}, "defect": "it raised", "workers": ["w0", "w1", "w2"]},
        "nearer": {"env_kinds": ["gymnasium"], "tasks": ["corridor"], "schema": {}, "workers": ["w0", "w1"]},
    },
    {
        "corridor": {"properties": {"length": {"type": "integer", "minimum": 2}}, "workers": ["w0", "w1"]},
        "bare": {"properties": {}, "defect": "it raised", "workers": ["w2"]},
        "carts": {"properties": {"limit": {}}, "is_batched": True},
    },
    {
        "gymnasium": {
            "CartPole-v1": {"arguments": []},
            "Ant-v5": {"arguments": None},
            "Lander-v3": {"defect": "Box2D is not installed"},
        }
    },
)
#: Codes of refusals that need a store, or come while the text is read.
ELSEWHERE = {
    *("unknown_experiment", "E_SEED_REUSED", "E_PILOT"),
    *("unknown_run", "run_not_finished", "other_task", "unknown_episode", "nothing_grown"),
    *("duplicate_key", "yaml_alias", "template"),
}


def problems_of(raw: dict[str, Any]) -> list[Problem]:
    try:
        return check(parse(raw), REGISTERED)[0]
    except InvalidSpecError as error:
        return all_problems(raw, error.problems, REGISTERED)


def arm(**second: Any) -> dict[str, Any]:
    """Return a specification whose second arm is given."""
    return tiny_spec(arms=[{"label": "A"}, {"label": "B", **second}])


def override(**values: Any) -> dict[str, Any]:
    return arm(overrides={name.replace("__", "."): value for name, value in values.items()})


def judged(blocks: int = 6, /, **analysis: Any) -> dict[str, Any]:
    """Return a specification with a verdict; tests of one arm against another."""
    return tiny_spec(experiment={"replicates": blocks}, analysis={"inference": "full", **analysis})


def looks(blocks: int, /, *at: int, **more: Any) -> dict[str, Any]:
    return judged(blocks, looks={"mode": "planned", "at": list(at)}, **more)


def without(raw: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    return {**raw, section: {key: value for key, value in raw[section].items() if key != name}}


BETTING = {"primary": {"metric": "eval/loss", "direction": "min"}, "failure": {"floor": 10.0}}
STATIC = {"policy": "static_matched"}
#: Code, what is refused with it, and the same after what the remedy says was done.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("unknown_key", tiny_spec(ppoo={"lr": 0.1}), tiny_spec(ppo={"lr": 0.1})),
    ("unknown_key", tiny_spec(seed=3), tiny_spec(experiment={"seed": 3})),
    ("unknown_key", override(ppo__lrr=0.1), override(ppo__lr=0.1)),
    ("unknown_key", override(lr=0.1), override(ppo__lr=0.1)),
    ("unknown_key", override(pppo__lr=0.1), override(ppo__lr=0.1)),
    ("unknown_key", override(return_norm__x="none"), override(return_norm="none")),
    ("unknown_key", tiny_spec(reward={"pbrs_wait": 1.0}), tiny_spec(reward={"pbrs_weight": 1.0})),
    ("unknown_key", cartpole_spec(env={"kwargs": {"length": 1}}), cartpole_spec(env={"kwargs": {}})),
    ("not_a_field", override(ppo={"lr": 0.1}), override(ppo__lr=0.1)),
    ("not_overridable", override(env__horizon=9, ppo__lr=0.1), override(ppo__lr=0.1)),
    ("not_overridable", override(lockstep__pack=2, ppo__lr=0.1), override(ppo__lr=0.1)),
    ("not_overridable", override(experiment__seed=3, ppo__lr=0.1), override(ppo__lr=0.1)),
    ("unknown_preset", tiny_spec(preset="digits_gpu"), tiny_spec(preset="digits_cpu")),
    ("unknown_kind", cartpole_spec(env={"kind": "gymnasum"}), cartpole_spec()),
    ("unknown_task", tiny_spec(env={"task": "digit_tiny"}), tiny_spec(env={"task": "digits_tiny"})),
    ("float_type", tiny_spec(ppo={"lr": "3e-4"}), tiny_spec(ppo={"lr": 3e-4})),
    ("float_type", override(ppo__lr="fast"), override(ppo__lr=0.1)),
    ("int_type", tiny_spec(env={"n_envs": 2.5}), tiny_spec(env={"n_envs": 2})),
    ("bool_type", cartpole_spec(env={"id": "corridor", "kwargs": {"length": [3]}}),
     cartpole_spec(env={"id": "corridor"})),
    ("less_than", tiny_spec(ppo={"clip": 1}), tiny_spec(ppo={"clip": 0.9})),
    ("greater_than_equal", tiny_spec(env={"n_envs": 0}), tiny_spec(env={"n_envs": 2})),
    ("literal_error", tiny_spec(experiment={"mode": "smok"}), tiny_spec(experiment={"mode": "smoke"})),
    ("literal_error", cartpole_spec(lockstep={"pack": 33}), cartpole_spec(lockstep={"pack": 32})),
    ("literal_error", cartpole_spec(lockstep={"pack": "4"}), cartpole_spec(lockstep={"pack": 4})),
    ("too_short", {**tiny_spec(), "arms": [{"label": "A"}]}, tiny_spec()),
    ("too_long", tiny_spec(experiment={"tags": ["a"] * 33}), tiny_spec(experiment={"tags": ["a"] * 32})),
    ("too_long", tiny_spec(experiment={"name": "a" * 201}), tiny_spec(experiment={"name": "a" * 200})),
    ("string_pattern_mismatch", arm(label="a b", reward="sparse"), arm(label="a_b", reward="sparse")),
    ("string_type", arm(**STATIC, static_set={"r0c0": 3}), arm(**STATIC, static_set={"r0c0": "norm"})),
    ("value_error", tiny_spec(ppo={"value_coef": 1e300}), tiny_spec(ppo={"value_coef": 1e18})),
    ("value_error", override(ppo__lr=1e-50), override(ppo__lr=1e-18)),
    ("value_error", tiny_spec(reward={"prune_harmful_below": -1e19}), tiny_spec(reward={"prune_harmful_below": 0.0})),
    ("less_than_equal", tiny_spec(env={"embargo": 10**30}), tiny_spec(env={"embargo": 10**9})),
    ("value_error", tiny_spec(experiment={"name": " \t"}), tiny_spec(experiment={"name": "word"})),
    ("missing", without(tiny_spec(), "experiment", "name"), tiny_spec()),
    ("missing", without(cartpole_spec(), "env", "id"), cartpole_spec()),
    ("missing", {name: value for name, value in tiny_spec().items() if name != "arms"}, tiny_spec()),
    ("too_short", tiny_spec(arms=[]), tiny_spec()),
    ("missing", arm(**STATIC), arm(**STATIC, static_set={"r0c0": "norm"})),
    ("missing", {**tiny_spec(experiment={"replicates": 2}), "analysis": None}, tiny_spec(experiment={"replicates": 2})),
    ("malformed", tiny_spec(ppo={"lr": float("nan")}), tiny_spec(ppo={"lr": 0.1})),
    ("control_character", tiny_spec(experiment={"notes": "a\x00"}), tiny_spec(experiment={"notes": "a"})),
    ("too_deep", tiny_spec(env={"kwargs": {"a": [[[[[[[[[[[[[]]]]]]]]]]]]]}}), tiny_spec()),
    ("too_many", tiny_spec(env={"kwargs": {str(number): 0 for number in range(2_000)}}), tiny_spec()),
    ("duplicate", arm(label="A", reward="sparse"), arm(reward="sparse")),
    ("aa_arms_differ", tiny_spec(experiment={"kind": "aa"}), tiny_spec(experiment={"kind": "ab"})),
    ("identical_arms", arm(), merge(arm(), {"experiment": {"kind": "aa"}})),
    ("not_applicable", cartpole_spec(arms=[{"label": "A"}, {"label": "B", "policy": "noop"}]),
     cartpole_spec(arms=[{"label": "A"}, {"label": "B", "policy": "random"}])),
    ("unknown_policy", arm(policy="noopp"), arm(policy="noop")),
    ("not_applicable", tiny_spec(env={"id": "CartPole-v1"}), tiny_spec()),
    ("not_applicable", cartpole_spec(env={"slots": ["r0c0"]}), cartpole_spec()),
    ("not_applicable", arm(reward="sparse", static_set={"r0c0": "norm"}), arm(reward="sparse")),
    ("not_applicable", tiny_spec(eval={"max_steps": 40}), tiny_spec()),
    ("unknown_wrapper", cartpole_spec(env={"wrappers": ["mask_velocities"]}),
     cartpole_spec(env={"wrappers": ["mask_velocity"]})),
    ("not_applicable", tiny_spec(env={"processes": 2}), tiny_spec(env={"processes": 1})),
    ("not_applicable", tiny_spec(env={"wrappers": ["mask_velocity"]}), tiny_spec()),
    ("not_applicable", tiny_spec(env={"kwargs": {"a": 1}}), tiny_spec()),
    ("not_applicable", cartpole_spec(env={"id": "corridor", "wrappers": ["mask_velocity"]}),
     cartpole_spec(env={"id": "corridor"})),
    ("not_applicable", cartpole_spec(env={"id": "carts", "wrappers": ["mask_velocity"]}),
     cartpole_spec(env={"id": "carts"})),
    ("not_applicable", cartpole_spec(env={"id": "carts", "processes": 2}), cartpole_spec(env={"id": "carts"})),
    ("not_applicable", cartpole_spec(env={"id": "carts", "max_episode_steps": 9}),
     cartpole_spec(env={"id": "carts", "kwargs": {"limit": 9}})),
    ("not_applicable", cartpole_spec(env={"horizon": 20}), cartpole_spec(env={"max_episode_steps": 20})),
    ("not_applicable", cartpole_spec(env={"task": "digits_small"}), cartpole_spec()),
    ("not_applicable", cartpole_spec(env={"governor": {"window": 9}}), cartpole_spec()),
    ("not_applicable", cartpole_spec(host={"lr": 0.1}), cartpole_spec()),
    ("not_applicable", cartpole_spec(engine={"path": "eager"}), cartpole_spec()),
    ("not_applicable", cartpole_spec(env={"id": "Ant-v5", "kwargs": {"render_mode": "human"}}), cartpole_spec()),
    ("model_type", tiny_spec(reward="shaped"), tiny_spec(reward={"mode": "shaped"})),
    ("duplicate", cartpole_spec(env={"wrappers": ["mask_velocity"] * 2}),
     cartpole_spec(env={"wrappers": ["mask_velocity"]})),
    ("contradiction", cartpole_spec(env={"id": "Ant-v5", "max_episode_steps": 9, "kwargs": {"max_episode_steps": 9}}),
     cartpole_spec(env={"id": "Ant-v5", "max_episode_steps": 9})),
    ("value_error", cartpole_spec(env={"id": ""}), cartpole_spec()),
    ("value_error", cartpole_spec(env={"id": " CartPole-v1"}), cartpole_spec()),
    ("unknown_slot", tiny_spec(env={"slots": ["r0c0", "r0c7"]}), tiny_spec(env={"slots": ["r0c0", "r0c1"]})),
    ("unknown_slot", arm(**STATIC, static_set={"r0c7": "norm"}), arm(**STATIC, static_set={"r0c0": "norm"})),
    ("unknown_blueprint", arm(**STATIC, static_set={"r0c0": "nrom"}), arm(**STATIC, static_set={"r0c0": "norm"})),
    ("slot_not_enabled", merge(arm(**STATIC, static_set={"r0c1": "norm"}), {"env": {"slots": ["r0c0"]}}),
     merge(arm(**STATIC, static_set={"r0c1": "norm"}), {"env": {"slots": ["r0c0", "r0c1"]}})),
    ("duplicate", tiny_spec(env={"slots": ["r0c0", "r0c0"]}), tiny_spec(env={"slots": ["r0c0"]})),
    ("zero_batches", tiny_spec(env={"batch_size": 5_000}), tiny_spec(env={"batch_size": 500})),
    ("too_many_batches", tiny_spec(env={"batches_per_step": 99}), tiny_spec(env={"batches_per_step": 9})),
    ("out_of_range", tiny_spec(env={"val_images": 5_000}), tiny_spec(env={"val_images": None})),
    ("out_of_range", cartpole_spec(env={"id": "corridor", "kwargs": {"length": 1}}),
     cartpole_spec(env={"id": "corridor", "kwargs": {"length": 2}})),
    ("too_short", tiny_spec(env={"horizon": 5}), tiny_spec(env={"horizon": 8})),
    ("too_many_minibatches", tiny_spec(ppo={"minibatches": 64}), tiny_spec(ppo={"minibatches": 2})),
    ("too_many_minibatches", cartpole_spec(env={"rollout_steps": 1}, ppo={"minibatches": 5}),
     cartpole_spec(env={"rollout_steps": 1}, ppo={"minibatches": 4})),
    ("contradiction", tiny_spec(ppo={"entropy_coef_end": 0.2}), tiny_spec(ppo={"entropy_coef_end": 0.05})),
    ("contradiction", tiny_spec(lockstep={"barrier": "none"}),
     tiny_spec(lockstep={"barrier": "none", "placement": "one_per_device"})),
    ("contradiction", tiny_spec(obs_norm={"sharing": "shared_frozen", "enabled": False}),
     tiny_spec(obs_norm={"sharing": "shared_frozen", "enabled": True})),
    ("contradiction", tiny_spec(env={"gamma": 0.9}, ppo={"gamma": 0.8}), tiny_spec(env={"gamma": 0.9})),
    ("contradiction", arm(reward="sparse", overrides={"reward.mode": "minimal"}), arm(reward="sparse")),
    ("contradiction", override(env__gamma=0.9, ppo__gamma=0.8), override(env__gamma=0.9)),
    ("contradiction", tiny_spec(env={"ablate_fossils": "final"}), tiny_spec(env={"ablate_fossils": "always"})),
    ("not_built", tiny_spec(ppo={"aux_coef": 0.5}), tiny_spec(ppo={"aux_coef": 0.0})),
    ("unknown_head", tiny_spec(ppo={"prob_floor": {"opp": 0.1}}), tiny_spec(ppo={"prob_floor": {"op": 0.1}})),
    ("unknown_reward", merge(arm(policy="noop"), {"reward": {"mode": "thrift", "price": 0.5}}),
     merge(arm(policy="noop"), {"reward": {"mode": "thrifty", "price": 0.5}})),
    ("unknown_reward", arm(reward="sparce"), arm(reward="sparse")),
    ("unknown_reward", arm(overrides={"reward.mode": "sparce"}), arm(overrides={"reward.mode": "sparse"})),
    ("unknown_reward", tiny_spec(eval={"xeval_modes": ["sparce"]}), tiny_spec(eval={"xeval_modes": ["sparse"]})),
    ("unknown_reward", arm(reward="nearer"), arm(reward="sparse")),
    ("defective_reward", arm(reward="broken"), arm(reward="sparse")),
    ("defective_reward", tiny_spec(eval={"xeval_modes": ["broken"]}), tiny_spec(eval={"xeval_modes": ["sparse"]})),
    ("reward_of_other_task", cartpole_spec(reward={"mode": "nearer"}),
     cartpole_spec(reward={"mode": "nearer"}, env={"id": "corridor"})),
    ("unknown_environment", cartpole_spec(env={"id": "CartPole-v7"}), cartpole_spec()),
    ("defective_environment", cartpole_spec(env={"id": "Lander-v3"}), cartpole_spec()),
    ("defective_environment", cartpole_spec(env={"id": "bare"}), cartpole_spec()),
    ("E_REWARD_DEPENDENT", judged(primary="eval/return_mean"), judged(primary="eval/accuracy")),
    ("E_METRIC_UNKNOWN", judged(primary="eval/acuracy"), judged(primary="eval/accuracy")),
    ("E_METRIC_UNKNOWN", judged(secondary=["eval/unheard_of"]), judged(secondary=["eval/loss"])),
    ("E_PAIRING", judged(estimand="p_superiority", sesoi=0.1),
     judged(estimand="p_superiority", sesoi=0.1, paired=False)),
    ("E_ANYTIME_UNPAIRED", judged(10, looks={"mode": "anytime"}, paired=False), judged(10, looks={"mode": "anytime"})),
    ("E_BETTING_UNBOUNDED", judged(20, looks={"mode": "anytime", "e_value": "betting"}, **BETTING),
     judged(20, looks={"mode": "anytime", "e_value": "sign"}, **BETTING)),
    ("E_CONTROL", judged(comparisons="vs_control"), judged(comparisons="vs_control", control="A")),
    ("E_CONTROL", judged(control="nobody"), judged(control="A")),
    ("E_REPLICATES", judged(replicates={"planned": 7}), judged(7, replicates={"planned": 7})),
    ("E_REPLICATES", judged(replicates={"max": 5}), judged(replicates={"max": 6})),
    ("E_LOOKS", looks(20), looks(20, 7, 14, 20)),
    ("E_LOOKS", looks(20, 7, 14), looks(14, 7, 14)),
    ("E_ANALYSIS_FIELD", looks(20, 20, 1001), looks(20, 20, 1000)),
    ("E_ANALYSIS_FIELD", judged(curve={"metric": "eval/loss", "at": [2, 10**6]}),
     judged(curve={"metric": "eval/loss", "at": [2, 10**5]})),
    ("E_LOOKS", looks(7, 7, 14, replicates={"max": 20}), looks(7, 7, 14, replicates={"max": 14})),
    ("E_LOOK_UNREACHABLE", looks(20, 6, 14, 20), looks(20, 7, 14, 20)),
    ("E_LOOK_UNREACHABLE", looks(5, 3, 5), looks(8, 7, 8)),
    ("E_SESOI", judged(sesoi=None), judged(sesoi=1.0)),
    ("E_SESOI", judged(sesoi=0.5, estimand="p_superiority", paired=False),
     judged(sesoi=0.1, estimand="p_superiority", paired=False)),
    ("E_SESOI", judged(sesoi=1.0, estimand="learned", threshold=50.0),
     judged(sesoi=0.2, estimand="learned", threshold=50.0)),
    ("E_THRESHOLD", judged(sesoi=0.2, estimand="learned"), judged(sesoi=0.2, estimand="learned", threshold=50.0)),
    ("E_THRESHOLD", judged(threshold=500.0), judged(threshold=50.0)),
    ("E_FLOOR", judged(failure={"floor": None}), judged(failure={"floor": 0.0})),
    ("E_FLOOR", judged(failure={"floor": 1.0}), judged(failure={"floor": 0.0})),
    ("E_ALPHA_UNREACHABLE", judged(2), judged(6)),
    ("E_ALPHA_UNREACHABLE", judged(5, looks={"mode": "anytime"}), judged(10, looks={"mode": "anytime"})),
    ("E_ANALYSIS_FIELD", judged(esoi=1.0), judged(sesoi=1.0)),
    ("E_ANALYSIS_FIELD", judged(guardrails=[{"metric": "eval/loss"}]),
     judged(guardrails=[{"metric": "eval/loss", "max_harm": 1.0}])),
    ("E_BAYES_STOP", judged(looks={"mode": "posterior"}), judged(looks={"mode": "fixed"})),
    ("E_DIRECTION", judged(primary={"direction": "up"}), judged(primary={"direction": "max"})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "refused", "mended"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_refusal_is_said_once_names_a_field_and_its_remedy_works(
    code: str, refused: dict[str, Any], mended: dict[str, Any]
) -> None:
    found = problems_of(refused)
    assert [problem.code for problem in found] == [code], "\n".join(map(str, found))
    assert stands_in(found[0].pointer, refused) or dotted(found[0].pointer) in paths_of(Spec), found[0].pointer
    told = f"{found[0].message} ({found[0].remedy})"
    assert found[0].remedy
    assert not re.search(r"Input should|Value error|valid |match pattern|\^\[|known: \)|items? after", told), told
    assert problems_of(mended) == []


def stands_in(at: str, document: Any) -> bool:
    """Return whether a JSON pointer leads to something in a document."""
    for part in at.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return False
    return True


def dotted(at: str) -> str:
    return ".".join(part for part in at.split("/")[1:] if not part.isdecimal())


def sources(*folders: str) -> Iterator[ast.Module]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield ast.parse(path.read_text())


def test_every_refusal_of_a_specification_is_tried() -> None:
    place = {"Problem": 1, "_problem": 1, "_found": 0, "refusal": 0}
    codes = set()
    for module in sources("lockstep/spec", "app/services"):
        for node in ast.walk(module):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in place):
                continue
            for code in node.args[place[node.func.id] :][:1]:
                codes |= {str(code.value)} if isinstance(code, ast.Constant) else set()
    assert len(codes) > 50
    assert {code for code in codes if not code.startswith("W_")} - {case[0] for case in CASES} == ELSEWHERE


def sentences(*folders: str) -> set[str]:
    """Return every piece of text with a space in it that stands in code, docstrings left out."""
    found = set()
    for module in sources(*folders):
        for node in ast.walk(module):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                found.add(node.value)
    return found


def test_every_field_that_a_sentence_names_exists() -> None:
    known = {*paths_of(Spec)}
    named = {
        name
        for text in sentences("lockstep/spec", "app/services")
        for name in re.findall(r"(?<![\w./-])[a-z][a-z_0-9]*(?:\.[a-z_0-9]+)+(?![\w/])", text)
    }
    assert len(named) > 40
    assert named - known == set()


def test_every_command_that_a_sentence_names_exists() -> None:
    known = set(typer.main.get_command(command).commands)  # type: ignore[attr-defined]
    named = {
        word
        for text in sentences("lockstep", "app", "worker")
        for word in re.findall(r"(?<!upgrade )\blockstep ([a-z]+)", text)
    }
    assert len(named) > 5
    assert named - known == set()


def test_every_pattern_of_the_schemas_has_words(tmp_path: Path) -> None:
    schemas = [model.model_json_schema() for model in (Spec, RegisterRequest, RoundRequest)]
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'lockstep.db'}", data_dir=tmp_path))
    patterns = set(patterns_in([*schemas, app.openapi()]))
    assert len(patterns) > 5
    assert patterns - {*FORMS} == set()


def patterns_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(value.get("pattern"), str):
        yield value["pattern"]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from patterns_in(item)


def test_names_of_other_libraries_lead_to_fields_that_exist() -> None:
    paths = {field.path for field in fields()}
    assert set(FOREIGN.values()) <= paths
    assert {"budget.rounds", "env.n_envs", "env.rollout_steps"} <= paths
    assert remedy_for_key("learning_rate", ["lr"]) == "did you mean ppo.lr?"
    assert remedy_for_key("total_timesteps", ["rounds"]).startswith("give budget.rounds: the steps divided by")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (cartpole_spec(lockstep={"pack": 33}), "lockstep.pack must be 'auto' or a whole number from 1 to 32, not 33"),
        (override(lockstep__pack=2), "how the arms of a replicate are run side by side"),
        (override(env__processes=2), "how the arms of a replicate are run side by side"),
        (override(budget__rounds=2), "they would not train equally long"),
        (override(analysis__alpha=0.1), "it belongs to the whole experiment"),
        (tiny_spec(process=2), "did you mean env.processes?"),
        (tiny_spec(ppo={"num_workers": 2}), "did you mean env.processes?"),
        (tiny_spec(replicate=2), "did you mean experiment.replicates or analysis.replicates?"),
        (tiny_spec(env={"envs": 2}), "did you mean 'n_envs'?"),
        (tiny_spec(ppo={"batch_size": 64}), "give ppo.minibatches: the transitions of a round divided by"),
        (tiny_spec(reward={"zork": 2}), " more)"),
        (
            {
                **cartpole_spec(reward={"mode": "nearer"}, env={"id": "corridor", "max_episode_steps": 9}),
                "preset": None,
            },
            "/env/kind: env.id 'corridor' is set without env.kind (add preset: gym_classic or env.kind: gymnasium)",
        ),
        (tiny_spec(env={"id": "CartPole-v1", "max_episode_steps": 9}), "(remove env.id, or set env.kind to gymnasium)"),
        ({**tiny_spec(), "budget": 9}, "give a mapping, for example {rounds: ..}"),
        (tiny_spec(preset="DIGITS_CPU"), "did you mean 'digits_cpu'?"),
        (cartpole_spec(env={"id": "gymnasium.envs:CartPole-v1"}), "Write the name behind the colon"),
        (
            cartpole_spec(reward={"mode": "nearr"}, env={"id": "corridor"}),
            "(did you mean 'nearer'? Built in: native; workers offer: nearer on w0, w1; broken cannot be used: it "
            "raised; install the package that has it where a worker runs and restart that worker)",
        ),
        (arm(reward="nearer"), "reward mode 'nearer' serves env.kind gymnasium, not morphogenesis"),
        (
            override(reward__mode="thrifty", reward__late=2),
            "unknown key 'late' (known: price; worker w0 registered no such key: restart it after an install)",
        ),
        (
            cartpole_spec(env={"id": "corridor", "kwargs": {"lenght": 3}}),
            "(did you mean 'length'? Worker w0 registered no such key: restart it after an install)",
        ),
        (arm(reward="broken"), "reward mode 'broken' failed its check on w0, w1 and 1 more: it raised"),
        (cartpole_spec(reward={"mode": "nearer"}), "reward mode 'nearer' scores 'corridor', not 'CartPole-v1'"),
    ],
)
def test_a_refusal_gives_the_reason_and_what_was_meant(raw: dict[str, Any], told: str) -> None:
    [problem] = problems_of(raw)
    assert told in str(problem)
    assert len(str(problem)) < 320


def test_no_number_of_training_lies_beyond_what_arrays_hold() -> None:
    """Those of the analysis are computed in float64; a seed is a whole number of 63 bits."""
    for field in fields():
        if "number" not in field.form or "[]" in field.path or field.path.startswith(("analysis", "env.kwargs")):
            continue
        section, *names = field.path.split(".")
        value: Any = 10**19
        for name in reversed(names):
            value = {name: value}
        assert problems_of(tiny_spec(**{section: value})), field.path


def test_number_that_is_not_finite_is_named_by_its_place() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        parse({"experiment": {"name": "x"}, "ppo": {"lr": float("inf")}})
    [problem] = refusal.value.problems
    assert (problem.pointer, problem.message) == ("/ppo/lr", "inf is no finite number")
