"""`lockstep env check ID`: is an environment fit for Lockstep, and what will be done with it. No server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.spec.environments.gymnasium import WRAPPERS
from worker.envs.gymnasium.checking.check import OK, Checked, check
from worker.supervision.options import json_object, within

_WRONG_CALL = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 fit, 1 refused, 2 wrongly called."""
    options = parse(arguments)
    try:
        kwargs = json_object("--kwargs", options.kwargs)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return _WRONG_CALL
    checked = check(options.id, kwargs, steps=options.steps, seconds=options.seconds, wrappers=options.wrapper)
    text = json.dumps(_document(options.id, kwargs, checked), indent=2) if options.json else _lines(options.id, checked)
    sys.stdout.write(f"{text}\n")
    return 0 if checked.is_ok else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="lockstep env", description="Environments on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("check", help="play an environment and say whether Lockstep can train in it")
    checks.add_argument("id", help="as in env.id: registered with Gymnasium, or by a package of your own")
    checks.add_argument("--kwargs", default="{}", help="keyword arguments as JSON, as in env.kwargs (default: {})")
    checks.add_argument(
        "--wrapper", action="append", default=[], choices=WRAPPERS, help="as in env.wrappers; once for each"
    )
    steps, seconds = within(1, 100_000), within(0.1, 3600.0)
    checks.add_argument(
        "--steps",
        type=steps,
        default=1000,
        help="most steps to play in each instance, up to 100000 (default: %(default)s)",
    )
    checks.add_argument(
        "--seconds", type=seconds, default=10.0, help="seconds after which the first play ends (default: %(default)s)"
    )
    checks.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def _document(name: str, kwargs: dict[str, Any], checked: Checked) -> dict[str, Any]:
    findings = [asdict(finding) for finding in checked.findings]
    scale = None if checked.scale is None else asdict(checked.scale)
    told = {"ok": checked.is_ok, "findings": findings, "treatment": checked.treatment, "scale": scale}
    return {"id": name, "kwargs": kwargs, **told}


def _lines(name: str, checked: Checked) -> str:
    lines = [f"{'' if item.state == OK else item.state + ': '}{item.name}: {item.text}" for item in checked.findings]
    if checked.treatment:
        lines += ["What Lockstep does with it:", *(f"  {key}: {text}" for key, text in checked.treatment.items())]
    if checked.scale is not None and checked.is_ok:
        lines += ["For a specification, as a first guess:", *checked.scale.lines()]
    verdict = "can be trained in" if checked.is_ok else "cannot be trained in as it is"
    return "\n".join([*lines, f"{name} {verdict}"])


if __name__ == "__main__":
    sys.exit(main())
