"""`lockstep env check`: fit environments pass, each way to be unfit is named, and nothing is a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import tests.worker.envs.kit  # noqa: F401 - registers the task
from lockstep.quoting import quoted
from lockstep.spec.text.reading import load_text
from tests.packages import write_package
from worker.commands.env_cli import main
from worker.envs.gymnasium.checking.scale import scale_of

_shared = np.random.default_rng(3)


class _Fit(gymnasium.Env[Any, Any]):
    """Shows a walk; fit for Lockstep unless ``how`` says otherwise."""

    def __init__(self, how: str = "fit") -> None:
        self.observation_space = spaces.Box(-2.0, 2.0, (2,))
        self.action_space = spaces.Discrete(3, start=-1)
        self.how, self.resets = how, 0
        if how == "unlicensed":
            raise RuntimeError("no licence")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - of the interface
        super().reset(seed=None if self.how == "unseeded" else seed)
        self.steps, self.resets = 0, self.resets + 1
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.how == "raises" and self.steps == 7:
            return dict[str, Any]()["velocity"]
        reward = float(action) + (self.resets if self.how == "remembers" else 0)
        return self._observation(), reward, self.steps >= 20, False, {}

    def _observation(self) -> np.ndarray:
        generator = _shared if self.how == "shared" else self.np_random
        drawn = generator.uniform(-1, 1, 2).astype(np.float32)
        return drawn + np.float32(3) if self.how == "outside" else drawn

    def close(self) -> None:
        if self.how == "cannot close":
            raise RuntimeError("busy")


class _Speaks(_Fit):
    """Shows text."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(3)


gymnasium.register("Speaks-v0", entry_point=lambda **_: _Speaks())
gymnasium.register("Fit-v0", entry_point=lambda **kwargs: _Fit(**kwargs), max_episode_steps=200)
gymnasium.register("Boundless-v0", entry_point=lambda **kwargs: _Fit(**kwargs))


_LINE = 1 + next(n for n, line in enumerate(Path(__file__).read_text().splitlines()) if '["velocity"]' in line)


def check(capsys: pytest.CaptureFixture[str], how: str, *more: str) -> tuple[int, str]:
    code = main(["check", "Fit-v0", "--kwargs", json.dumps({"how": how}), "--steps", "100", *more])
    return code, capsys.readouterr().out


def test_a_fit_environment_passes_and_the_treatment_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = check(capsys, "fit")
    assert code == 0
    assert "refused" not in out
    assert "warning" not in out
    assert "plays: 100 steps and 5 ends of episodes" in out
    assert "\nreturns: 5 episodes of random actions returned " in out
    assert "resumes: a block that is resumed by replay shows the same in every step, from 3 borders" in out
    assert "actions: one categorical head for each part: action of 3" in out
    assert "evaluation: an episode is cut after 200 steps, its own limit; eval.max_steps says otherwise" in out
    assert out.endswith("Fit-v0 can be trained in\n")


def test_values_for_an_analysis_are_measured_and_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = check(capsys, "fit")
    lines = out.splitlines()
    at = lines.index("For a specification, as a first guess:")
    pasted = load_text("\n".join(lines[at + 1 : at + 4]))["analysis"]
    assert lines[at + 1] == "analysis:", "indented as in a specification that spec init wrote"
    _, document = check(capsys, "fit", "--json")
    scale = json.loads(document)["scale"]
    assert pasted == {"sesoi": scale["sesoi"], "failure": {"floor": scale["floor"]}}
    assert scale["episodes"] == 5
    assert scale["floor"] < scale["low"] < scale["high"]
    assert f"SD {scale['sd']:.2g}" in out


@pytest.mark.parametrize(
    ("returns", "least", "limit", "sesoi", "floor"),
    [
        ([9.0, 14.0, 60.0, 22.0], 1.0, 500, 5.0, 0.0),
        ([-200.0, -200.0], -1.0, 200, 10.0, -200.0),
        ([-1800.0, -900.0, -1234.0], -16.2, 200, 90.0, -3300.0),
        ([-450.0, -60.0, -130.0], -100.0, 1000, 40.0, -1300.0),
        ([-5.0], -0.5, None, 0.2, -5.5),
        ([0.0, 0.0], 0.0, 100, None, 0.0),
        ([-3.0, 4.0], None, None, 1.0, -17.0),
    ],
)
def test_suggested_values_fit_the_returns(
    returns: list[float], least: float | None, limit: int | None, sesoi: float | None, floor: float
) -> None:
    found = scale_of(returns, least, limit)
    assert found is not None
    assert (found.sesoi, found.floor) == (sesoi, floor)
    assert load_text("\n".join(found.lines()))["analysis"]["failure"] == {"floor": floor}


def test_an_environment_without_a_limit_of_steps_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "Boundless-v0", "--steps", "100"]) == 0
    out = capsys.readouterr().out
    assert (
        "warning: limit: no limit of steps is registered: an episode that a policy does not end is evaluated for" in out
    )
    assert "evaluation: an episode is cut after 100,000 steps if it does not end before: no limit is registered" in out


@pytest.mark.parametrize(
    ("how", "name", "words"),
    [
        ("unlicensed", "builds", "cannot be built: RuntimeError: no licence"),
        ("raises", "plays", f"in step 7 raised KeyError: 'velocity'; raised in {__file__}, line {_LINE}"),
        (
            "unseeded",
            "deterministic",
            "a second instance under the same seeds differs in step 1 of play: the observation",
        ),
        ("shared", "deterministic", "seed of reset (super().reset(seed=seed), then self.np_random) and keep"),
        ("remembers", "resumes", "in the replay after a resume the reward is "),
    ],
)
def test_what_makes_it_unfit_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], how: str, name: str, words: str
) -> None:
    code, out = check(capsys, how, "--json")
    document = json.loads(out)
    assert (code, document["ok"]) == (1, False)
    refused = {item["name"]: item["text"] for item in document["findings"] if item["state"] == "refused"}
    assert words in refused[name]


@pytest.mark.parametrize(
    ("how", "words"),
    [("outside", "warning: bounds: step 1: component 0 is "), ("cannot close", "close raised RuntimeError: busy")],
)
def test_what_lockstep_can_live_with_is_a_warning(capsys: pytest.CaptureFixture[str], how: str, words: str) -> None:
    code, out = check(capsys, how)
    assert code == 0
    assert words in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPole-v7", "env.id='CartPole-v7': no package that is installed here has it; did you mean 'CartPole-v1'?"),
        ("coridor", "env.id='coridor': no package that is installed here has it; did you mean 'corridor'?"),
        ("zzz", "packages here register corridor; Gymnasium has "),
        ("gymnasium.envs:CartPole-v1", "write the name behind the colon"),
        ("Speaks-v0", "a Text has no fixed number of components"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(
    capsys: pytest.CaptureFixture[str], name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "halls", "", "[lockstep.environments]\ncorridor = halls_code:Corridor\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", name]) == 1
    refusal, verdict = capsys.readouterr().out.splitlines()
    assert words in refusal
    assert verdict == f"{name} cannot be trained in as it is"


def test_arguments_are_judged_by_the_schema_of_their_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "class Hall:\n    schema = {'properties': {'length': {'type': 'integer', 'minimum': 2}}}\n"
    write_package(tmp_path, "rooms", code, "[lockstep.environments]\nhall = rooms_code:Hall\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", "hall", "--kwargs", '{"length": 1, "lenght": 3}']) == 1
    refusal = capsys.readouterr().out.splitlines()[0]
    assert "/env/kwargs/length: length = 1 is not at least 2" in refusal
    assert "/env/kwargs/lenght: unknown key 'lenght' (did you mean 'length'?)" in refusal


def test_every_kind_of_space_is_told_and_success_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "Kit-v0", "--steps", "40"]) == 0
    out = capsys.readouterr().out
    assert (
        "one categorical head for each part: action_grip of 2; one Gaussian head for each Box: action_move of 2" in out
    )
    assert "12 numbers, flattened to float32; with obs_norm.enabled 2 of them are normalised; images through " in out
    assert "parts: in this order: camera: an image, channels last, 3 x 12 x 10, bytes; flags: 2 numbers 0 or 1; " in out
    assert "success: eval/success_rate is measured: " in out


def test_wrappers_are_laid_around_what_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--steps", "20", "--wrapper", "mask_velocity"]) == 0
    assert main(["check", "Fit-v0", "--wrapper", "mask_velocity"]) == 1
    assert "refused: builds: env.wrappers: mask_velocity knows ['Acrobot-v1'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "given", "told"),
    [
        *(
            ("--steps", given, "use a whole number from 1 to 100000")
            for given in ("0", "-1", "2.5", "9" * 9, "9" * 5000)
        ),
        *(("--seconds", given, "use a number from 0.1 to 3600.0") for given in ("0", "-1", "nan", "inf", "soon")),
    ],
)
def test_a_number_out_of_range_is_a_wrong_call(
    capsys: pytest.CaptureFixture[str], option: str, given: str, told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "CartPole-v1", option, given])
    assert ended.value.code == 2
    assert f"argument {option}: {told}, not {quoted(given)}" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["{", "[1]", "3"])
def test_kwargs_that_are_no_object_are_a_wrong_call(capsys: pytest.CaptureFixture[str], given: str) -> None:
    assert main(["check", "CartPole-v1", "--kwargs", given]) == 2
    assert "error: --kwargs: " in capsys.readouterr().err
