"""CIFAR-10's binary files: reading, checking, and the one place that downloads them.

Training never downloads: missing or wrong files raise with the command that fetches them. The fetch
resumes a broken download, checks size and SHA-256, extracts exactly six members and writes a manifest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_BYTES = 170_052_171
ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
MEMBERS = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
RECORDS, RECORD_BYTES = 10_000, 3_073
FILE_BYTES = RECORDS * RECORD_BYTES
MANIFEST = "cifar10.json"
_CHUNK = 1 << 20


def read(data_dir: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images [60000, 3, 32, 32] and labels [60000], the test batch last.

    Raises:
        FileNotFoundError: a file is missing or has the wrong size or content, or the manifest is damaged.
    """
    images, labels = [], []
    hashes = _manifest(data_dir)
    for name in MEMBERS:
        path = data_dir / name
        if not path.is_file() or path.stat().st_size != FILE_BYTES:
            raise FileNotFoundError(f"{path} is missing or not {FILE_BYTES} bytes; {_remedy(data_dir)}")
        content = path.read_bytes()
        if name in hashes and hashlib.sha256(content).hexdigest() != hashes[name]:
            raise FileNotFoundError(f"{path} differs from its manifest; {_remedy(data_dir)}")
        records = np.frombuffer(content, dtype=np.uint8).reshape(RECORDS, RECORD_BYTES)
        if records[:, 0].max() > 9:
            raise FileNotFoundError(f"{path} has labels above 9, so it is damaged; {_remedy(data_dir)}")
        labels.append(records[:, 0])
        images.append(records[:, 1:].reshape(RECORDS, 3, 32, 32))
    return np.concatenate(images), np.concatenate(labels)


def fetch(data_dir: Path, url: str = URL) -> Path:
    """Download, verify and unpack the data set; return the manifest's path.

    Raises:
        ConnectionError: no network, or the server refused; what was received is kept for a resume.
        ValueError: the archive is not the expected one.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    archive = data_dir / "cifar-10-binary.tar.gz"
    if not archive.exists():
        partial = archive.with_suffix(".part")
        _download(url, partial)
        _verify(partial)
        partial.rename(archive)
    else:
        _verify(archive)
    return _extract(archive, data_dir)


def _download(url: str, partial: Path) -> None:
    start = partial.stat().st_size if partial.exists() else 0
    if start >= ARCHIVE_BYTES:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310 - url is a constant
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - as above
            mode = "ab" if start and response.status == 206 else "wb"
            with partial.open(mode) as file:
                shutil.copyfileobj(response, file, _CHUNK)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ConnectionError(
            f"cannot download {url}: {error}. Run it again where there is a network (it resumes), or "
            f"put {', '.join(MEMBERS)} into {partial.parent}"
        ) from error


def _verify(archive: Path) -> None:
    size = archive.stat().st_size
    if size != ARCHIVE_BYTES:
        raise ValueError(f"{archive} has {size} bytes, not {ARCHIVE_BYTES}; run the command again to resume")
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != ARCHIVE_SHA256:
        raise ValueError(f"{archive} has SHA-256 {digest.hexdigest()}, not {ARCHIVE_SHA256}; delete it and retry")


def _extract(archive: Path, data_dir: Path) -> Path:
    hashes: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            source = tar.extractfile(member) if name in MEMBERS and member.isfile() else None
            if source is None:
                continue
            content = source.read()
            (data_dir / name).write_bytes(content)
            hashes[name] = hashlib.sha256(content).hexdigest()
    missing = sorted(set(MEMBERS) - set(hashes))
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(missing)}")
    manifest = data_dir / MANIFEST
    manifest.write_text(
        json.dumps({"source": URL, "sha256": hashes}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    return manifest


def _manifest(data_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of every member, or nothing where the files were put there by hand."""
    path = data_dir / MANIFEST
    if not path.is_file():
        return {}
    try:
        hashes: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["sha256"]
        return {name: hashes[name] for name in MEMBERS}
    except (ValueError, KeyError, TypeError) as error:
        raise FileNotFoundError(f"{path} is damaged ({error!r}); {_remedy(data_dir)}") from error


def _remedy(data_dir: Path) -> str:
    return f"run: lockstep data fetch cifar10 --data-dir {data_dir}"
