"""`lockstep spec check` and `lockstep spec diff`: what they print and how they end."""

from __future__ import annotations

from pathlib import Path

import yaml
from typer.testing import CliRunner

from app.cli.specs import app
from lockstep.spec.resolve import parse
from lockstep.spec.text.reading import load_text
from tests.factories import tiny_spec

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits-shaped-vs-simplified.yaml"


def written(folder: Path, name: str, **changes: object) -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(tiny_spec(**changes)))
    return str(path)


def test_check_accepts_an_example_and_prints_its_hash() -> None:
    result = CliRunner().invoke(app, ["check", str(EXAMPLE)])
    assert result.exit_code == 0
    assert parse(load_text(EXAMPLE.read_text())).hash in result.output


def test_check_names_field_and_remedy_of_every_problem_and_ends_with_one(tmp_path: Path) -> None:
    bad = written(tmp_path, "bad.yaml", ppo={"lrr": 1e-3}, budget={"rounds": 0})
    result = CliRunner().invoke(app, ["check", bad])
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert any(line.startswith("/ppo/lrr:") and "(did you mean 'lr'?)" in line for line in lines)
    assert any(line.startswith("/budget/rounds:") for line in lines)


def test_diff_shows_what_arms_differ_in_and_in_what_two_files_differ(tmp_path: Path) -> None:
    arms = [{"label": "a"}, {"label": "b", "overrides": {"ppo.lr": 0.001}}]
    one = written(tmp_path, "one.yaml", arms=arms)
    result = CliRunner().invoke(app, ["diff", one])
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if line.startswith(("a:", "b:", "  "))] == [
        "a: (base)",
        "b:",
        f"  ppo.lr: {parse(tiny_spec(arms=arms)).arms[0].config['ppo']['lr']} -> 0.001",
    ]
    other = written(tmp_path, "other.yaml", arms=arms, budget={"rounds": 77})
    result = CliRunner().invoke(app, ["diff", one, other])
    assert result.exit_code == 0
    changed = {line.split(":")[0] for line in result.output.splitlines()}
    assert "budget.rounds" in changed
    assert not any(path.startswith(("env.", "net.", "host.")) for path in changed)
    assert CliRunner().invoke(app, ["diff", one, one]).output == ""


def test_diff_of_a_refused_file_ends_with_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["diff", written(tmp_path, "bad.yaml", nett={})])
    assert result.exit_code == 1
