"""`python -m worker.commands.data_cli`: fetch data sets ahead of training and show their fingerprints.

Training never downloads; this is the one command that does. Needs no server and no torch device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from worker.envs.morph.task import cifar
from worker.envs.morph.task.data import load


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, 1 with a message on a data or network error."""
    options = _parser().parse_args(arguments)
    try:
        lines = _fetch(options.data_dir) if options.command == "fetch" else _fingerprint(options)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep data", description="Data sets on this machine. Training never downloads; `fetch` does."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="download, verify and unpack a data set")
    fetch.add_argument("dataset", choices=["cifar10"], help="which one")
    fetch.add_argument("--data-dir", type=Path, required=True, help="folder to put it into")
    show = commands.add_parser("fingerprint", help="print the SHA-256 of the decoded arrays")
    show.add_argument("dataset", help="digits, cifar10, synth, pydoc, text or text:<path>")
    show.add_argument("--data-dir", type=Path, help="folder of data sets; cifar10 needs one")
    return parser


def _fetch(data_dir: Path) -> list[str]:
    manifest = cifar.fetch(data_dir)
    return [f"cifar10 is ready in {data_dir}", f"manifest {manifest}"]


def _fingerprint(options: argparse.Namespace) -> list[str]:
    arrays = load(options.dataset, options.data_dir)
    sizes = ", ".join(f"{name} {len(index)}" for name, index in arrays.splits.items())
    return [arrays.fingerprint(), sizes] if len(arrays.labels) else [arrays.fingerprint()]


if __name__ == "__main__":
    sys.exit(main())
