"""What an operator chooses for a supervisor."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.ranges import NumberT, number_within


def within(low: NumberT, high: NumberT) -> Callable[[str], NumberT]:
    """Return the reader of an option of the command line: a number from ``low`` to ``high``."""

    def read(text: str) -> NumberT:
        try:
            return number_within(text, low, high)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def json_object(option: str, text: str) -> dict[str, Any]:
    """Return what an option of the command line gives as a JSON object.

    Raises:
        ValueError: it is none; the sentence names the option and an example.
    """
    example = f"{option} '{{\"size\": 4}}'"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}; write an object, for example {example}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{option}: {text!r} is no JSON object; write for example {example}")
    return found


@dataclass(frozen=True)
class Options:
    """What the operator chose.

    Attributes:
        url: control plane.
        token: worker token or None.
        name: display name; default host and device.
        threads: torch threads of the child on a CPU slot.
        data_dir: where data sets lie.
        work_dir: spool and checkpoints of this supervisor.
        spool_bytes: bound of the spool.
        trainer: command of the trainer; None = built in.
        once: retire when there is nothing to do (tests, batch systems).
        host: name of this host; None = the system's.
    """

    url: str
    token: str | None
    name: str | None
    threads: int
    data_dir: Path | None
    work_dir: Path
    spool_bytes: int
    trainer: list[str] | None
    once: bool = False
    host: str | None = None
