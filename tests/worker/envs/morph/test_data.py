"""Data sets, splits, fingerprints, keyed epochs, refusals."""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tests.worker.envs.morph.factories import CPU, SEED, rng, tiny
from worker.capabilities import datasets
from worker.envs.morph.episode.shared_data import Setup, SharedData
from worker.envs.morph.task import cifar, data, synth
from worker.envs.morph.task.config import EnvConfig
from worker.envs.morph.task.data import Arrays, TrainingData, load, split_items


def training_data(config: EnvConfig, arrays: Arrays | None = None, seed: int = SEED) -> TrainingData:
    return TrainingData(config, arrays or load(config.task.dataset, None), CPU, seed)


def test_digits_have_the_fingerprint_and_splits_of_the_specification() -> None:
    arrays = load("digits", None)
    assert arrays.fingerprint() == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    sizes = {name: len(index) for name, index in arrays.splits.items()}
    assert sizes == {"train": 1085, "val": 357, "test": 355}
    assert len(set(np.concatenate(list(arrays.splits.values())).tolist())) == 1797


def test_normalised_training_digits_have_mean_0_and_deviation_1() -> None:
    data = training_data(tiny())
    assert abs(float(data._images.mean())) < 0.02
    assert abs(float(data._images.std()) - 1.0) < 0.02


# defect 14
def test_batch_larger_than_the_split_is_refused_with_numbers_and_remedy() -> None:
    message = "batch_size 65536 leaves 0 training batches in 1085 examples; use at most 1085"
    with pytest.raises(ValueError, match=message):
        training_data(tiny(batch_size=65_536))
    with pytest.raises(ValueError, match=r"batches_per_step 20 exceeds the 16 batches of 64"):
        training_data(tiny(batches_per_step=20))


# defect 15
def test_training_holds_no_handle_to_the_test_split() -> None:
    data = training_data(tiny())
    with pytest.raises(PermissionError, match="test split"):
        _ = data.test
    held = [t for t in vars(data).values() if isinstance(t, torch.Tensor)] + [data.val.x, data.val.y]
    assert sum(t.shape[0] for t in held) == 2 * (1085 + 357)


def test_epoch_repeats_for_its_key_and_differs_for_another() -> None:
    data = training_data(tiny())
    x, y = data.epoch(rng(1), None)
    assert x.shape == (2, 64, 1, 8, 8)
    assert y.shape == (2, 64)
    assert all(torch.equal(a, b) for a, b in zip(data.epoch(rng(1), None), (x, y), strict=True))
    assert not torch.equal(data.epoch(rng(2), None)[0], x)
    seen = data.epoch(rng(3), None)[0].flatten(0, 1).flatten(1)
    assert len(torch.unique(seen, dim=0)) >= 127


def fake_cifar(directory: Path) -> None:
    draw = rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    # a short pattern repeated, so that the archive of the fetch tests compresses fast
    pattern = draw.integers(0, 256, 40_009, dtype=np.uint8)
    block = np.resize(pattern, (cifar.RECORDS, cifar.RECORD_BYTES))
    for number, name in enumerate(cifar.MEMBERS):
        block[:, 0] = np.arange(cifar.RECORDS) % 10
        block[:, 1] = number
        (directory / name).write_bytes(block.tobytes())


@pytest.fixture(scope="module")
def cifar_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cifar")
    fake_cifar(directory)
    return directory


def test_cifar_splits_take_the_last_500_of_each_class_for_validation(cifar_dir: Path) -> None:
    arrays = load("cifar10", cifar_dir)
    assert {name: len(index) for name, index in arrays.splits.items()} == {
        "train": 45_000,
        "val": 5_000,
        "test": 10_000,
    }
    assert np.bincount(arrays.labels[arrays.splits["val"]]).tolist() == [500] * 10
    assert arrays.splits["val"].min() == 45_000
    assert arrays.splits["test"].min() == 50_000
    assert arrays.images[49_999, 0, 0, 0] == 4


# defect 40
def test_augmentation_is_fresh_every_epoch_and_equal_for_its_key(cifar_dir: Path) -> None:
    config = EnvConfig.for_task("cifar_baseline", batch_size=64, batches_per_step=1)
    data = training_data(config, load("cifar10", cifar_dir))
    first, _ = data.epoch(rng(1), rng(2))
    again, _ = data.epoch(rng(1), rng(2))
    other, _ = data.epoch(rng(1), rng(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (1, 64, 3, 32, 32)


def test_augmentation_equals_crop_and_flip_by_hand(cifar_dir: Path) -> None:
    config = EnvConfig.for_task("cifar_baseline", batch_size=8, batches_per_step=1)
    arrays = load("cifar10", cifar_dir)
    x, y = training_data(config, arrays).epoch(rng(1), rng(2))
    chosen = arrays.splits["train"][rng(1).permutation(45_000)[:8]]
    draws = rng(2).integers(0, [9, 9, 2], size=(1, 8, 3))[0]
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (arrays.mean, arrays.std))
    for i, (top, left, flip) in enumerate(draws):
        image = arrays.images[chosen[i]].astype(float)
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), constant_values=np.nan)
        padded = np.where(np.isnan(padded), np.round(mean * 255), padded)
        crop = padded[:, top : top + 32, left : left + 32]
        crop = crop[:, :, ::-1] if flip else crop
        np.testing.assert_allclose(x[0, i].numpy(), (crop / 255 - mean) / std, atol=1e-5)
    assert torch.equal(y[0], torch.from_numpy(arrays.labels[chosen].astype(np.int64)))


def test_missing_cifar_files_name_the_fetch_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="lockstep data fetch cifar10 --data-dir"):
        load("cifar10", tmp_path)
    with pytest.raises(ValueError, match="data directory"):
        load("cifar10", None)


def test_cifar_file_that_differs_from_its_manifest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    fake_cifar(tmp_path)
    hashes = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in cifar.MEMBERS}
    (tmp_path / cifar.MANIFEST).write_text(json.dumps({"sha256": hashes}))
    cifar.read(tmp_path)
    content = bytearray((tmp_path / "test_batch.bin").read_bytes())
    content[5] ^= 1
    (tmp_path / "test_batch.bin").write_bytes(bytes(content))
    with pytest.raises(FileNotFoundError, match="differs from its manifest"):
        cifar.read(tmp_path)


@pytest.mark.parametrize("damage", [
    lambda d: (d / "test_batch.bin").unlink(),
    lambda d: (d / "data_batch_3.bin").write_bytes((d / "data_batch_3.bin").read_bytes()[:-1]),
    lambda d: (d / "data_batch_1.bin").write_bytes(b"\x0a" + (d / "data_batch_1.bin").read_bytes()[1:]),
    lambda d: (d / cifar.MANIFEST).write_text("{"),
    lambda d: (d / cifar.MANIFEST).write_text(
        json.dumps({"sha256": {n: hashlib.sha256((d / n).read_bytes()).hexdigest() for n in cifar.MEMBERS[1:]}})
    ),
], ids=["missing", "truncated", "label above 9 without a manifest", "broken manifest", "partial manifest"])  # fmt: skip
def test_damaged_cifar_names_the_file_and_the_command_and_is_not_announced(
    damage: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch)
    fake_cifar(tmp_path)
    assert "cifar10" in datasets(tmp_path)
    damage(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"(\.bin|\.json) .*run: lockstep data fetch cifar10 --data-dir"):
        load("cifar10", tmp_path)
    assert "cifar10" not in datasets(tmp_path)


def test_digits_are_those_of_the_library_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bunch, table = load_digits(), data._digits_table()
    assert np.array_equal(table[:, :-1].reshape(-1, 8, 8), bunch.images)
    assert np.array_equal(table[:, -1], bunch.target)
    changed = table.copy()
    changed[0, 0] += 1
    monkeypatch.setattr(data, "_digits_table", lambda: changed)
    with pytest.raises(ValueError, match="differ"):
        data.load("digits", None)


def test_another_text_under_the_same_name_has_another_fingerprint(tmp_path: Path) -> None:
    corpus = tmp_path / "tinystories.txt"
    corpus.write_text("once upon a time " * 1_000)
    before = datasets(tmp_path)["text"]
    corpus.write_text("once upon a time " * 999)
    assert datasets(tmp_path)["text"] != before
    corpus.unlink()
    assert "text" not in datasets(tmp_path)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch file hold 50 records."""
    monkeypatch.setattr(cifar, "RECORDS", 50)
    monkeypatch.setattr(cifar, "FILE_BYTES", 50 * cifar.RECORD_BYTES)


def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink(monkeypatch)
    source = tmp_path / "source" / "cifar-10-batches-bin"
    fake_cifar(source)
    path = tmp_path / "served.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        tar.add(source, arcname=source.name)
    monkeypatch.setattr(cifar, "ARCHIVE_BYTES", path.stat().st_size)
    monkeypatch.setattr(cifar, "ARCHIVE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_fetch_verifies_and_writes_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = archive(tmp_path, monkeypatch)
    target = tmp_path / "data"
    manifest = cifar.fetch(target, served.as_uri())
    assert set(json.loads(manifest.read_text())["sha256"]) == set(cifar.MEMBERS)
    images, labels = cifar.read(target)
    assert images.shape == (300, 3, 32, 32)
    assert labels.shape == (300,)
    names = {path.name for path in target.iterdir()}
    assert names == {*cifar.MEMBERS, cifar.MANIFEST, "cifar-10-binary.tar.gz"}


class _Ranged(BaseHTTPRequestHandler):
    """Serves one archive and honours the Range header."""

    content = b""
    asked: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        span = self.headers.get("Range")
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        self.asked.append(start)
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:])

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_fetch_resumes_a_broken_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive(tmp_path, monkeypatch).read_bytes()
    target = tmp_path / "data"
    target.mkdir()
    (target / "cifar-10-binary.tar.part").write_bytes(content[:1000])
    _Ranged.content = content
    with ThreadingHTTPServer(("127.0.0.1", 0), _Ranged) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            cifar.fetch(target, f"http://127.0.0.1:{server.server_port}/archive")
        finally:
            server.shutdown()
            thread.join()
    assert _Ranged.asked == [1000]
    assert (target / "cifar-10-binary.tar.gz").read_bytes() == content


def test_fetch_without_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="where there is a network"):
        cifar.fetch(tmp_path, "http://127.0.0.1:9/cifar.tar.gz")


def test_fetch_of_a_wrong_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = archive(tmp_path, monkeypatch)
    monkeypatch.setattr(cifar, "ARCHIVE_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="SHA-256"):
        cifar.fetch(tmp_path / "data", served.as_uri())


# defect 42
def test_synth_is_fixed_balanced_and_of_the_stated_size() -> None:
    first, second = synth.generate("val", 1024), synth.generate("val", 1024)
    assert np.array_equal(first[0], second[0])
    assert first[0].shape == (1024, 3, 16, 16)
    assert np.bincount(first[1]).tolist() == [103, 103, 103, 103, 102, 102, 102, 102, 102, 102]
    assert not np.array_equal(first[0], synth.generate("test", 1024)[0])


# defect 42
def test_linear_classifier_stays_near_chance_on_synth() -> None:
    images, labels = synth.generate("train", 4096)
    val, truth = synth.generate("val", 1024)
    x, target = images.reshape(4096, -1) - 0.5, np.eye(10)[labels]
    weights = np.linalg.solve(x.T @ x + 1e3 * np.eye(x.shape[1]), x.T @ target)
    accuracy = ((val.reshape(1024, -1) - 0.5) @ weights).argmax(1) == truth
    assert accuracy.mean() <= 0.20


# defect 43
def test_text_epoch_counts_windows_times_block_len_tokens_without_padding() -> None:
    config = EnvConfig.for_task("lm_tiny", batches_per_step=3)
    arrays = load("pydoc", None)
    data = training_data(config, arrays)
    x, y = data.epoch(rng(1), None)
    assert x.shape == y.shape == (3, 16, 64)
    assert torch.equal(x[..., 1:], y[..., :-1])
    assert data.val.x.shape == (64, 64)
    offset = int(rng(1).integers(0, data.train_size, size=(3, 16))[0, 0])
    assert np.array_equal(x[0, 0].numpy(), arrays.images[offset : offset + 64])
    bounds = [tuple(arrays.splits[name]) for name in ("train", "val", "test")]
    assert bounds[0][1] == bounds[1][0]
    assert bounds[2][1] == len(arrays.images)


def test_text_of_any_utf8_file_is_its_bytes_split_80_10_10_by_position(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    corpus = ("zażółć gęślą jaźń \U0001f642\n" * 400).encode()
    path.write_bytes(corpus)
    arrays = load(f"text:{path}", None)
    assert arrays.images.tobytes() == corpus
    tenth = len(corpus) / 10
    assert [tuple(arrays.splits[name]) for name in ("train", "val", "test")] == [
        (0, int(8 * tenth)),
        (int(8 * tenth), int(9 * tenth)),
        (int(9 * tenth), len(corpus)),
    ]


def test_text_that_is_not_utf8_is_refused_with_the_place_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"a" * 3_000_000 + "é".encode("latin-1") + b"a" * 100)
    with pytest.raises(ValueError, match=r"latin.txt is not UTF-8 at byte 3000000; convert it"):
        load(f"text:{path}", None)
    path.write_bytes(b"a" * 100 + "é".encode()[:1])
    with pytest.raises(ValueError, match=r"is not UTF-8 at byte 100; convert it"):
        load(f"text:{path}", None)


def test_short_corpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("x" * 6_000)
    with pytest.raises(ValueError, match="val split has 600 bytes; block_len 64 needs at least 650"):
        training_data(EnvConfig.for_task("lm_tiny"), load(f"text:{path}", None))


def test_unknown_or_missing_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown"):
        load("mnist", None)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load("text", tmp_path)


def test_shortened_validation_is_one_subset_per_replicate() -> None:
    config = tiny(val_images=200)
    arrays = load("digits", None)
    first, again, other = (split_items(config, arrays, "val", CPU, seed) for seed in (1, 1, 2))
    assert len(first.y) == 200
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


def test_crops_are_those_of_bounded_integers() -> None:
    for key in range(5):
        draw, again = (np.random.Generator(np.random.Philox(key=key)) for _ in range(2))
        crops = data._crops(draw, (24, 512, 3))
        assert np.array_equal(crops, again.integers(0, [9, 9, 2], size=(24, 512, 3)))
        assert crops.dtype == np.int64
        assert [sorted(set(crops[..., part].ravel().tolist())) for part in range(3)] == [
            [*range(9)],
            [*range(9)],
            [0, 1],
        ]


def test_the_fused_path_without_a_gpu_is_refused_by_name() -> None:
    config = EnvConfig.for_task("digits_tiny", path="fused", batch_size=64, batches_per_step=1)
    with pytest.raises(ValueError, match=r"engine\.path 'fused' needs a CUDA device"):
        SharedData.load(Setup(config, SEED, CPU, 1, "train"))
