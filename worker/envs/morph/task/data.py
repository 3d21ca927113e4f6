"""Data sets, splits and the keyed streams of an epoch (environment.md 5).

Splits are fixed per data set. An environment receives a ``TrainingData`` that holds no test split:
reading it raises. Images live on the device; indices are drawn on the CPU from keys that name neither
arm, device nor the number of environments. Axes: N items, B batch, n batches.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib.util
import pydoc_data.topics
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep import keys
from lockstep.spec.tasks import LmShape
from worker.envs.morph.kernels import Kernels, load_kernels
from worker.envs.morph.task import cifar, synth
from worker.envs.morph.task.config import EnvConfig, check_batches, resolve_path

Array = NDArray[np.generic]
_PAD = 4
#: Places of a crop down and across, and whether it is flipped.
_CHOICES = np.array([2 * _PAD + 1, 2 * _PAD + 1, 2], dtype=np.uint64)
_CHUNK = 1 << 20
_DIGITS_SHA = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


@dataclass(frozen=True)
class Arrays:
    """A decoded data set.

    Attributes:
        images: uint8 or float32 [N, C, H, W]; text: uint8 [N] bytes.
        labels: uint8 [N]; empty for text.
        splits: name to indices (text: to [start, stop] byte positions).
        mean, std: per channel, in units of the scaled images.
        scale: images are divided by this before normalisation.
    """

    images: Array
    labels: Array
    splits: dict[str, NDArray[np.int64]]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scale: float = 1.0

    def fingerprint(self) -> str:
        """Return the SHA-256 of the decoded arrays, images then labels."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Items:
    """Validation or test items on the device, ready to run: x [N, ..], y [N] or [N, L]."""

    x: Tensor
    y: Tensor


def load(dataset: str, data_dir: Path | None) -> Arrays:
    """Return a data set by name: digits, cifar10, synth, pydoc, text or text:<path>.

    Raises:
        ValueError: unknown name, a directory is needed, or a text is not UTF-8.
        FileNotFoundError: files are missing; the message names the command that fetches them.
    """
    if dataset == "digits":
        return _digits()
    if dataset == "cifar10":
        if data_dir is None:
            raise ValueError("data set cifar10 needs a data directory; give --data-dir")
        return _cifar(data_dir)
    if dataset == "synth":
        return _synth()
    if dataset == "pydoc":
        topics = pydoc_data.topics.topics
        return _text("".join(f"{key}\n{topics[key]}\n" for key in sorted(topics)).encode())
    if dataset == "text" or dataset.startswith("text:"):
        return _text(_read_utf8(_text_path(dataset, data_dir)))
    raise ValueError(f"data set {dataset!r} is unknown; use digits, cifar10, synth, pydoc or text:<path>")


def _text_path(dataset: str, data_dir: Path | None) -> Path:
    name = dataset.partition(":")[2]
    if name:
        path = Path(name)
    elif data_dir is not None:
        path = data_dir / "tinystories.txt"
    else:
        raise ValueError("a text task needs a data directory with tinystories.txt; give --data-dir")
    if not path.is_file():
        raise FileNotFoundError(f"text corpus {path} does not exist; put a UTF-8 file there")
    return path


def _read_utf8(path: Path) -> bytes:
    """Return a file's bytes; what is not text (an archive, another encoding) would train without complaint."""
    corpus, decoder, start = path.read_bytes(), codecs.getincrementaldecoder("utf-8")(), 0
    for start in range(0, len(corpus) + 1, _CHUNK):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(corpus[start : start + _CHUNK], final=start + _CHUNK > len(corpus))
        except UnicodeDecodeError as error:
            place = start - pending + error.start
            raise ValueError(f"text corpus {path} is not UTF-8 at byte {place}; convert it, or name another") from error
    return corpus


def _digits_table() -> NDArray[np.uint8]:
    """Return [1797, 65]: 64 pixels and the label, from scikit-learn's own file; importing its reader takes 1.5 s.

    Raises:
        FileNotFoundError: scikit-learn is not installed, or keeps the file elsewhere.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError("the digits images come with scikit-learn; pip install scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",", dtype=np.float64).astype(np.uint8)


def _digits() -> Arrays:
    table = _digits_table()
    images = table[:, :-1].reshape(-1, 1, 8, 8)
    labels = table[:, -1]
    place = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        where = np.flatnonzero(labels == label)
        place[where] = np.arange(len(where)) % 5
    splits = {
        "train": np.flatnonzero(place < 3),
        "val": np.flatnonzero(place == 3),
        "test": np.flatnonzero(place == 4),
    }
    arrays = Arrays(images, labels, splits, (0.3045,), (0.3759,), 16.0)
    if arrays.fingerprint() != _DIGITS_SHA:
        raise ValueError("the digits images of this scikit-learn differ from the expected ones")
    return arrays


def _cifar(data_dir: Path) -> Arrays:
    images, labels = cifar.read(data_dir)
    train = len(labels) - cifar.RECORDS
    val = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        val[np.flatnonzero(labels[:train] == label)[-500:]] = True
    splits = {
        "train": np.flatnonzero(~val[:train]),
        "val": np.flatnonzero(val),
        "test": np.arange(train, len(labels)),
    }
    return Arrays(images, labels, splits, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 255.0)


def _synth() -> Arrays:
    sizes = synth.SIZES
    parts = {name: synth.generate(name, count) for name, count in sizes.items()}
    stops = np.cumsum(list(sizes.values()))
    splits = {name: np.arange(stop - sizes[name], stop) for name, stop in zip(sizes, stops, strict=True)}
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()])
    return Arrays(images, labels, splits, (0.5,) * 3, (0.32,) * 3)


def _text(corpus: bytes) -> Arrays:
    data = np.frombuffer(corpus, dtype=np.uint8)
    first, second = len(data) * 8 // 10, len(data) * 9 // 10
    bounds = {"train": (0, first), "val": (first, second), "test": (second, len(data))}
    splits = {name: np.array(bound, dtype=np.int64) for name, bound in bounds.items()}
    return Arrays(data, np.zeros(0, dtype=np.uint8), splits)


class TrainingData:
    """What environments may see of a data set: train and val, on the device.

    Args:
        config: settings.
        arrays: the data set.
        device: where batches are gathered.
        replicate_seed: keys ``val_subset``, which shortens validation for all environments alike.
    """

    def __init__(self, config: EnvConfig, arrays: Arrays, device: torch.device, replicate_seed: int) -> None:
        self.config, self.device = config, device
        self.fingerprint = arrays.fingerprint()
        shape = config.task.host
        self.block_len = shape.block_len if isinstance(shape, LmShape) else 0
        self._norm = _Normaliser(arrays, device, config.dtype)
        if self.block_len:
            start, stop = _checked_span(arrays, "train", self.block_len)
            self._corpus = torch.from_numpy(arrays.images[start:stop].astype(np.int64)).to(device)
            self._window = torch.arange(self.block_len + 1, device=device)
            self.train_size = stop - start - self.block_len
        else:
            chosen = arrays.splits["train"]
            images = torch.from_numpy(np.ascontiguousarray(arrays.images[chosen]))
            self._labels = torch.from_numpy(arrays.labels[chosen].astype(np.int64)).to(device)
            self._images = self._prepare(images.to(device))
            self.train_size = len(chosen)
        check_batches(config, self.train_size)
        self.val = split_items(config, arrays, "val", device, replicate_seed)
        #: The whole validation split, where each replicate validates on some of it.
        self._val_split: Arrays | None = None
        if config.val_images is not None and not self.block_len:
            chosen = arrays.splits["val"]
            alone = {"val": np.arange(len(chosen))}
            self._val_split = replace(arrays, images=arrays.images[chosen], labels=arrays.labels[chosen], splits=alone)

    def renew(self, replicate_seed: int) -> None:
        """Put the validation items of another replicate in the place of these; where all have the same, do nothing."""
        if self._val_split is not None:
            fresh = split_items(self.config, self._val_split, "val", self.device, replicate_seed)
            self.val.x.copy_(fresh.x)
            self.val.y.copy_(fresh.y)

    @property
    def test(self) -> Items:
        """Refuse: environments hold no handle to the test split."""
        raise PermissionError("the test split is read by the final frozen-policy evaluation only")

    def epoch(self, order: np.random.Generator, augment: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return one epoch of batches x [n, B, ..], y [n, B, ..] from keyed generators."""
        return self.gather(self.draw(order, augment).to(self.device))

    @property
    def draw_width(self) -> int:
        """Return W: choices per item of a batch, its index and, with augmentation, top, left and flip."""
        return 4 if self.config.augment and not self.block_len else 1

    def draw(self, order: np.random.Generator, augment: np.random.Generator | None) -> Tensor:
        """Return the choices of one epoch, [n, B, W] int64 on the CPU."""
        batches, size = self.config.batches_per_step, self.config.batch_size
        if self.block_len:
            chosen = order.integers(0, self.train_size, size=(batches, size))
        else:
            chosen = order.permutation(self.train_size)[: batches * size].reshape(batches, size)
        index = chosen[..., None]
        if augment is None or self.draw_width == 1:
            return torch.from_numpy(index)
        return torch.from_numpy(np.concatenate([index, _crops(augment, (batches, size, 3))], axis=2))

    def gather_fused(self, kernels: Kernels, draws: Tensor, batch: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return ``gather`` of ``draws[batch]``, x in ``dtype`` and laid out for the kernels."""
        if self.draw_width == 1:
            x, y = self.gather(draws.index_select(0, batch)[0])
            return kernels.padded(x).to(dtype), y
        norm = (self._norm.mean, self._norm.std, self._norm.scale)
        return kernels.augment(self._images, self._labels, draws, batch, norm, dtype)

    def gather(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [.., B, ..] and y [.., B, ..] for choices [.., B, W] on the device."""
        index = draws[..., 0]
        if self.block_len:
            window = self._corpus[index[..., None] + self._window]
            return window[..., :-1], window[..., 1:]
        if draws.shape[-1] == 1:
            return self._images[index], self._labels[index]
        return self._augmented(index, draws[..., 1:]), self._labels[index]

    def _prepare(self, images: Tensor) -> Tensor:
        """Return what an epoch gathers from: normalised images, or raw ones padded for the crop."""
        if not self.config.augment:
            return self._norm(images)
        edge = images.shape[-1]
        border = self._norm.raw_mean.round().to(torch.uint8)
        padded = border.repeat(len(images), 1, edge + 2 * _PAD, edge + 2 * _PAD)
        padded[..., _PAD : _PAD + edge, _PAD : _PAD + edge] = images
        return padded

    def _augmented(self, index: Tensor, crops: Tensor) -> Tensor:
        """Return crops (padding 4) with random flips, gathered in one indexing expression."""
        edge = self._images.shape[-1] - 2 * _PAD
        top, left, flip = crops.unbind(-1)
        along = torch.arange(edge, device=self.device)
        rows = top[..., None] + along
        columns = left[..., None] + torch.where(flip[..., None] == 1, edge - 1 - along, along)
        picked = self._images[index[..., None, None], :, rows[..., :, None], columns[..., None, :]]
        return self._norm(picked.movedim(-1, -3))


class _Normaliser:
    """(x / scale - mean) / std per channel; text passes no images through it."""

    def __init__(self, arrays: Arrays, device: torch.device, dtype: torch.dtype) -> None:
        shape = (-1, 1, 1)
        self.dtype = dtype
        self.mean = torch.tensor(arrays.mean, dtype=dtype, device=device).view(shape)
        self.std = torch.tensor(arrays.std, dtype=dtype, device=device).view(shape)
        self.scale = arrays.scale
        self.raw_mean = (self.mean * self.scale).float()

    def __call__(self, images: Tensor) -> Tensor:
        return (images.to(self.dtype) / self.scale - self.mean) / self.std


def _crops(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return ``generator.integers(0, _CHOICES, shape)`` in a way that lets other threads run meanwhile.

    A uniform 32-bit number u gives floor(u n / 2^32) (Lemire 2019, without its rejection, whose chance is n / 2^32).
    """
    uniform = generator.integers(0, 1 << 32, size=shape, dtype=np.uint32)
    return ((uniform * _CHOICES) >> np.uint64(32)).astype(np.int64)


def split_items(config: EnvConfig, arrays: Arrays, split: str, device: torch.device, replicate_seed: int) -> Items:
    """Return the items of a split in their fixed order, the tail kept.

    ``env.val_images`` shortens the validation split for all alike (one ``val_subset`` per replicate).
    """
    if isinstance(config.task.host, LmShape):
        return _windows(config, config.task.host, arrays, split, device)
    chosen = arrays.splits[split]
    if split == "val" and config.val_images is not None:
        if config.val_images > len(chosen):
            raise ValueError(f"env.val_images {config.val_images} exceeds the {len(chosen)} of the split")
        order = keys.generator(replicate_seed, "val_subset").permutation(len(chosen))
        chosen = chosen[np.sort(order[: config.val_images])]
    images = torch.from_numpy(np.ascontiguousarray(arrays.images[chosen])).to(device)
    labels = torch.from_numpy(arrays.labels[chosen].astype(np.int64)).to(device)
    items = _Normaliser(arrays, device, config.dtype)(images)
    kernels = load_kernels(resolve_path(config, device))
    if kernels is not None:
        items = kernels.padded(items)
    return Items(items, labels)


def _windows(config: EnvConfig, shape: LmShape, arrays: Arrays, split: str, device: torch.device) -> Items:
    """Return fixed windows, evenly spread over the split."""
    length = shape.block_len
    start, stop = _checked_span(arrays, split, length)
    count = config.val_images or config.task.val_windows
    offsets = np.linspace(start, stop - length - 1, count).astype(np.int64)
    window = arrays.images[offsets[:, None] + np.arange(length + 1)].astype(np.int64)
    tokens = torch.from_numpy(window).to(device)
    return Items(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def _checked_span(arrays: Arrays, split: str, length: int) -> tuple[int, int]:
    start, stop = (int(bound) for bound in arrays.splits[split])
    if stop - start < 10 * (length + 1):
        raise ValueError(
            f"the {split} split has {stop - start} bytes; block_len {length} needs at least "
            f"{10 * (length + 1)}: use a longer corpus"
        )
    return start, stop
