"""Files on the command line: a specification by its path, or ``-`` for standard input; the format of what is saved."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

_SPECS = (".yaml", ".yml", ".json")


def _there(file: Path | None) -> Path | None:
    if file is None or str(file) == "-" or file.is_file():
        return file
    if not file.is_dir():
        raise typer.BadParameter(f"there is no file {file}")
    inside = sorted(path for path in file.iterdir() if path.suffix in _SPECS)
    remedy = f"name a file, for example {inside[0]}" if inside else "name a YAML or JSON file; it holds none"
    raise typer.BadParameter(f"{file} is a folder; {remedy}")


SpecFile = Annotated[Path, typer.Argument(callback=_there, help="YAML or JSON file; - reads standard input")]
OtherFile = Annotated[
    Path | None, typer.Argument(callback=_there, help="Second file; without it, what the arms of the first differ in")
]


def form_of(given: str | None, output: Path | None, forms: Mapping[str, str], default: str) -> str:
    """Return the format of what is saved: the one that is asked for, else that of the file's suffix, else the default.

    Args:
        given: ``--format``, None without.
        output: ``--output``, None without.
        forms: the format of each suffix.
        default: format of a file without such a suffix, and of no file.

    Raises:
        BadParameter: what is asked for is not what the suffix says.
    """
    by_name = forms.get(output.suffix.lower()) if output is not None else None
    if given is not None and by_name is not None and given != by_name:
        raise typer.BadParameter(
            f"--format {given} and --output {output} differ; leave --format out, or rename the file"
        )
    return given or by_name or default


def load(file: Path) -> dict[str, Any]:
    """Return a specification as plain data.

    Raises:
        InvalidSpecError: it is neither YAML nor JSON.
    """
    from lockstep.spec.text.reading import load_bytes, load_file

    return load_bytes(sys.stdin.buffer.read()) if str(file) == "-" else load_file(file)
