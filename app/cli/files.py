"""A specification on the command line: the path of a file, or ``-`` for standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def _there(file: Path | None) -> Path | None:
    if file is not None and str(file) != "-" and not file.is_file():
        raise typer.BadParameter(f"there is no file {file}")
    return file


SpecFile = Annotated[Path, typer.Argument(callback=_there, help="YAML or JSON file; - reads standard input")]
OtherFile = Annotated[Path | None, typer.Argument(callback=_there, help="Second file")]


def load(file: Path) -> dict[str, Any]:
    """Return a specification as plain data.

    Raises:
        InvalidSpecError: it is neither YAML nor JSON.
    """
    from lockstep.spec.reading import load_bytes, load_file

    return load_bytes(sys.stdin.buffer.read()) if str(file) == "-" else load_file(file)
