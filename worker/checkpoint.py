"""Atomic checkpoints: one safetensors file per run, a manifest with hashes written last, one rename.

Nothing here unpickles. A directory without a valid manifest, or with a file whose hash differs, does
not count and the one before is tried; a valid one of another run or spec is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

SCHEMA_VERSION = 1
_PREFIX = "round-"
_TEMPORARY = ".tmp-"
_MANIFEST = "manifest.json"
_HEADER = "lockstep"
_WRITERS = 4


class CheckpointRefused(Exception):  # noqa: N818 - the checkpoint is refused, which is no error of ours
    """A valid checkpoint that does not belong to what should be resumed; the message lists what differs."""


class NoCheckpoint(Exception):  # noqa: N818 - says what is missing
    """No valid checkpoint; the message says why each candidate failed."""


@dataclass(frozen=True)
class Snapshot:
    """One run's tensors by flat name, and its JSON header."""

    tensors: Mapping[str, Tensor]
    header: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointInfo:
    """A durable checkpoint: its directory, next round, and file name to SHA-256."""

    path: Path
    next_round: int
    files: Mapping[str, str]
    size_bytes: int


def save(root: Path, next_round: int, runs: Mapping[str, Snapshot], *, keep: int) -> CheckpointInfo:
    """Write all runs as one checkpoint and drop all but the newest ``keep``.

    The directory appears complete or not at all: files are synced, the manifest comes last, the
    rename is atomic and the parent is synced.
    """
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover)
    temporary = root / f"{_TEMPORARY}{next_round:06d}-{os.getpid()}"
    temporary.mkdir()

    def write(name: str) -> tuple[str, int]:
        data = encode(runs[name])
        write_synced(temporary / f"{name}.safetensors", data)
        return hashlib.sha256(data).hexdigest(), len(data)

    with ThreadPoolExecutor(_WRITERS) as pool:  # hashing and writing leave the interpreter to others
        written = dict(zip(runs, pool.map(write, runs), strict=True))
    files = {f"{name}.safetensors": digest for name, (digest, _) in written.items()}
    size = sum(length for _, length in written.values())
    manifest = {"schema_version": SCHEMA_VERSION, "next_round": next_round, "files": files}
    write_synced(temporary / _MANIFEST, json.dumps(manifest, sort_keys=True).encode())
    _sync_directory(temporary)
    final = root / f"{_PREFIX}{next_round:06d}"
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    _sync_directory(root)
    for old in _candidates(root)[keep:]:
        shutil.rmtree(old)
    return CheckpointInfo(final, next_round, files, size)


def load(path: Path) -> tuple[CheckpointInfo, dict[str, Snapshot]]:
    """Return the newest valid checkpoint under a root, or the one at ``path`` itself.

    Raises:
        NoCheckpoint: none is valid.
        CheckpointRefused: files of a checkpoint were exchanged.
    """
    candidates = [path] if path.name.startswith(_PREFIX) else _candidates(path)
    failures = []
    for candidate in candidates:
        try:
            return _read(candidate)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            failures.append(f"{candidate.name}: {error}")
    raise NoCheckpoint(f"no valid checkpoint under {path}: {'; '.join(failures) or 'none written'}")


def encode(snapshot: Snapshot) -> bytes:
    """Return a snapshot as safetensors bytes with its header as JSON."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in snapshot.tensors.items()}
    header = {**snapshot.header, "schema_version": SCHEMA_VERSION}
    return save_tensors(tensors, metadata={_HEADER: json.dumps(header, sort_keys=True)})


def decode(data: bytes) -> Snapshot:
    """Return the snapshot in safetensors bytes; an unknown schema raises ``ValueError``."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    header = json.loads(metadata[_HEADER])
    if header.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version {header.get('schema_version')!r}, this code reads {SCHEMA_VERSION}")
    return Snapshot(load_tensors(data), header)


def differing_paths(ours: Mapping[str, Any], theirs: Mapping[str, Any], free: tuple[str, ...] = ()) -> list[str]:
    """Return the dot paths at which two nested mappings differ, but for those under ``free`` sections."""
    return [p for p in _differences(ours, theirs, "") if p.split(".")[0] not in free]


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Write or replace a file so that a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    write_synced(temporary, data)
    temporary.replace(path)
    _sync_directory(path.parent)


def _candidates(root: Path) -> list[Path]:
    return sorted(root.glob(f"{_PREFIX}*"), reverse=True) if root.is_dir() else []


def _read(directory: Path) -> tuple[CheckpointInfo, dict[str, Snapshot]]:
    manifest = json.loads((directory / _MANIFEST).read_bytes())
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"manifest schema_version {manifest['schema_version']!r}")
    runs, size = {}, 0
    for name, expected in manifest["files"].items():
        data = (directory / name).read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        if actual != expected:
            others = [other for other, digest in manifest["files"].items() if digest == actual]
            if others:
                raise CheckpointRefused(f"{directory.name}/{name} holds the content of {others[0]}: files were swapped")
            raise ValueError(f"{name} does not match its hash")
        runs[name.removesuffix(".safetensors")] = decode(data)
        size += len(data)
    return CheckpointInfo(directory, int(manifest["next_round"]), manifest["files"], size), runs


def _differences(ours: Any, theirs: Any, path: str) -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted({*ours, *theirs}):
            yield from _differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key))
    elif _plain(ours) != _plain(theirs):
        yield path


def _plain(value: Any) -> Any:
    """JSON has no tuples: compare as what a file gives back."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
