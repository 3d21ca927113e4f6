"""A script needs the base install alone: client, specifications, statistics, reports and the commands for people."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Makes every package of the extras absent, as on a machine with `pip install lockstep`.
HIDE = """
import sys
class Finder:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Finder(finder) for finder in sys.meta_path]
"""
ABSENT = ["fastapi", "uvicorn", "websockets", "sqlalchemy", "alembic", "psycopg", "pydantic_settings", "structlog"]
ABSENT += ["prometheus_client", "torch", "sklearn", "safetensors", "pynvml", "gymnasium", "ray"]


def run(code: str) -> subprocess.CompletedProcess[str]:
    program = HIDE.format(names=ABSENT) + code
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_client_comes_from_the_package_and_is_loaded_when_asked_for() -> None:
    found = run(
        "import lockstep\nassert 'httpx' not in sys.modules\nfrom lockstep import Client\nprint(Client.__module__)"
    )
    assert found.stdout.strip() == "lockstep.client", found.stderr


@pytest.mark.long
def test_commands_for_people_run_without_server_and_worker_packages() -> None:
    arguments = ["lockstep", "check", "examples/digits-shaped-vs-simplified.yaml"]
    found = run(f"import app.cli.people\nsys.argv = {arguments!r}\nfrom app.cli.specs import main\nmain()")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("valid, hash")


@pytest.mark.long
def test_a_command_without_its_packages_names_what_to_install() -> None:
    for name, extra in (("serve", "server"), ("token", "server"), ("worker", "worker"), ("env", "worker,gym")):
        found = run(f"sys.argv = ['lockstep', {name!r}]\nfrom app.cli.people import main\nmain()")
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr == f"error: `lockstep {name}` needs more packages: pip install 'lockstep[{extra}]'\n"


def test_base_install_declares_what_it_imports_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {item.partition(">")[0] for item in project["dependencies"]}
    assert base == {"pydantic", "httpx", "typer", "pyyaml", "jinja2", "numpy", "scipy"}
