"""The checkpoint file format on its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worker.checkpoint import (
    NoCheckpoint,
    Snapshot,
    decode,
    differing_paths,
    encode,
    load,
    save,
    write_atomic,
)


def snapshot(value: float = 1.0) -> Snapshot:
    tensors = {"a": torch.tensor([value, torch.nan]), "n": torch.tensor([3]), "empty": torch.zeros(0, 2)}
    return Snapshot(tensors, {"identity": {"arm": "A"}, "text": "é"})


def test_round_trip_keeps_bits_types_and_header() -> None:
    back = decode(encode(snapshot()))
    assert back.tensors["a"].numpy().tobytes() == snapshot().tensors["a"].numpy().tobytes()
    assert back.tensors["n"].dtype == torch.int64
    assert back.tensors["empty"].shape == (0, 2)
    assert back.header["text"] == "é"


def test_unknown_schema_is_refused() -> None:
    data = encode(snapshot()).replace(b'\\"schema_version\\": 1', b'\\"schema_version\\": 7')
    with pytest.raises(ValueError, match="schema_version 7"):
        decode(data)


def test_saving_a_round_again_replaces_it_and_leftovers_vanish(tmp_path: Path) -> None:
    (tmp_path / ".tmp-000001-99").mkdir()
    save(tmp_path, 1, {"A": snapshot(1.0)}, keep=2)
    save(tmp_path, 1, {"A": snapshot(2.0)}, keep=2)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]
    info, runs = load(tmp_path)
    assert info.next_round == 1
    assert float(runs["A"].tensors["a"][0]) == 2.0


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_file_never_loads(tmp_path: Path, cut: int) -> None:
    path = save(tmp_path, 1, {"A": snapshot()}, keep=1).path / "A.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(NoCheckpoint, match="round-000001"):
        load(tmp_path)


def test_an_empty_root_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match="none written"):
        load(tmp_path / "nothing")


def test_differing_paths_name_leaves_and_spare_free_sections() -> None:
    ours = {"a": {"b": 1, "c": [1, 2]}, "t": {"x": 1}}
    theirs = {"a": {"b": 2, "c": (1, 2)}, "t": {"x": 2}, "new": 0}
    assert differing_paths(ours, theirs, ("t",)) == ["a.b", "new"]


def test_atomic_write_replaces_the_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "p" / "f", b"one")
    write_atomic(tmp_path / "p" / "f", b"two")
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["f"]
    assert (tmp_path / "p" / "f").read_bytes() == b"two"
