"""The tasks of morphogenesis as data: host shapes, slots, data sets, step budgets, names of actions and modes.

The one home of these facts, for the control plane, which loads no host, and for the worker, which builds one. Facts of
slots are derived from the host's shape, so a row states only what it chooses. Action order of slots is row-major,
execution order interleaves the rows; slot ids are never sorted as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep.quoting import quoted


@dataclass(frozen=True)
class SlotSpec:
    """One injection point: C channels, H x W map (LM: H = W = 1), place in the order of execution."""

    id: str
    row: int
    column: int
    channels: int
    height: int
    width: int
    position: int


@dataclass(frozen=True)
class CnnShape:
    """Shape of a convolutional host; block i has round(base * 2^i) channels (environment.md 2.1).

    ``widths`` overrides the channels of every block, for widened controls only.
    """

    in_channels: int
    size: int
    blocks: int
    base: int
    kernel: int
    pools: int
    num_classes: int = 10
    widths: tuple[int, ...] = ()

    def channels(self, block: int) -> int:
        """Return the channels of a block."""
        return self.widths[block] if self.widths else self.base << block

    def params(self) -> int:
        """Return the number of parameters of the host."""
        widths = [self.channels(i) for i in range(self.blocks)]
        taps = self.kernel * self.kernel
        convs = sum(taps * a * b for a, b in zip([self.in_channels, *widths], widths, strict=False))
        return convs + 2 * sum(widths) + (widths[-1] + 1) * self.num_classes

    def slots(self) -> list[SlotSpec]:
        """Return every slot in execution order: r0c0, r1c0, r0c1, r1c1, .."""
        slots: list[SlotSpec] = []
        size = self.size
        for block in range(self.blocks):
            surfaces = [(0, size), (1, size // 2)] if block < self.pools else [(0, size)]
            for row, edge in surfaces:
                slots.append(SlotSpec(f"r{row}c{block}", row, block, self.channels(block), edge, edge, len(slots)))
            size = surfaces[-1][1]
        return slots


@dataclass(frozen=True)
class LmShape:
    """Shape of a causal transformer over V symbols (environment.md 2.2); slots follow each segment."""

    vocab: int
    width: int
    heads: int
    layers: int
    block_len: int
    dropout: float
    segments: int = 3
    mlp_width: int = 0

    @property
    def num_classes(self) -> int:
        """Number of symbols."""
        return self.vocab

    @property
    def hidden(self) -> int:
        """Width of the MLP, 4C unless a widened control says otherwise."""
        return self.mlp_width or 4 * self.width

    def params(self) -> int:
        """Return the number of parameters, the tied head once."""
        c, hidden = self.width, self.hidden
        block = 4 * c * c + 4 * c + 2 * c * hidden + hidden + c + 4 * c
        return (self.vocab + self.block_len) * c + self.layers * block + 2 * c

    def slots(self) -> list[SlotSpec]:
        """Return every slot in execution order."""
        return [SlotSpec(f"r0c{i}", 0, i, self.width, 1, 1, i) for i in range(self.segments)]


HostShape = CnnShape | LmShape
Topology = Literal["cnn", "lm"]


@dataclass(frozen=True)
class Optim:
    """Settings of one optimiser; ``momentum`` is read by SGD only."""

    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    grad_clip: float = 1.0


@dataclass(frozen=True)
class LossConstants:
    """Constants of reward mode ``loss``: losses in nats, spread, and the weight of the rent."""

    baseline: float
    target: float
    sigma: float
    rent_weight: float


@dataclass(frozen=True)
class TaskSpec:
    """A registered task with its defaults.

    Attributes:
        name: ``env.task``.
        dataset: name of the data set.
        host: shape of the host.
        slots: slots enabled by default.
        horizon: env steps of an episode.
        batch_size: images or windows per batch.
        batches_per_step: batches per env step.
        pace: ``quick`` or ``standard``.
        host_optim, graft_optim: default optimisers.
        loss: constants of reward mode ``loss``.
        augment: whether training images are cropped and flipped.
        val_windows: validation windows of a text.
    """

    name: str
    dataset: str
    host: HostShape
    slots: tuple[str, ...]
    horizon: int
    batch_size: int
    batches_per_step: int
    pace: str
    host_optim: Optim
    graft_optim: Optim
    loss: LossConstants
    augment: bool = False
    val_windows: int = 0

    @property
    def is_text(self) -> bool:
        """Whether the host is a language model."""
        return isinstance(self.host, LmShape)

    @property
    def topology(self) -> Topology:
        """Return the kind of host, which decides what may grow in it."""
        return "lm" if self.is_text else "cnn"

    @property
    def all_slots(self) -> tuple[str, ...]:
        """Return every slot of the host in action order."""
        return tuple(slot.id for slot in action_order(self.host.slots()))

    @property
    def train_size(self) -> int:
        """Return the number of training examples; 0 of a text, whose windows are drawn at keyed offsets."""
        return _SPLITS[self.dataset][0] if self.dataset in _SPLITS else 0

    @property
    def val_size(self) -> int:
        """Return the number of validation examples (of a text: windows)."""
        return _SPLITS[self.dataset][1] if self.dataset in _SPLITS else self.val_windows


@dataclass(frozen=True)
class Pace:
    """Time constants of environment.md 3.3: steps, except the two lists of choices."""

    dwell: int
    embargo: int
    min_prune_age: int
    tempos: tuple[int, ...]
    speeds: tuple[int, ...]


PACES: Mapping[str, Pace] = {
    "standard": Pace(10, 5, 5, (3, 5, 8), (0, 3, 5, 8)),
    "quick": Pace(2, 1, 2, (1, 2, 3), (0, 1, 2, 3)),
}

#: Training and validation examples of a data set.
_SPLITS: Mapping[str, tuple[int, int]] = {"digits": (1_085, 357), "cifar10": (45_000, 5_000), "synth": (4_096, 1_024)}

_DIGITS_LOSS = LossConstants(2.3, 0.1, 0.05, 0.05)
_IMAGE_LOSS = LossConstants(2.3, 0.3, 0.05, 0.05)
_TEXT_LOSS = LossConstants(5.545, 1.0, 0.15, 0.01)
_SGD, _SGD_GRAFT = Optim(0.01, weight_decay=5e-4), Optim(0.01)


def action_order(slots: list[SlotSpec]) -> list[SlotSpec]:
    """Return slots row-major: the order of actions and observations."""
    return sorted(slots, key=lambda slot: (slot.row, slot.column))


def _row(row: int, columns: int) -> tuple[str, ...]:
    return tuple(f"r{row}c{column}" for column in range(columns))


def _digits(name: str, base: int) -> TaskSpec:
    shape = CnnShape(1, 8, 2, base, 3, 2)
    host, graft = Optim(0.02, weight_decay=5e-4), Optim(0.1)
    return TaskSpec(name, "digits", shape, _row(0, 2), 30, 64, 16, "quick", host, graft, _DIGITS_LOSS)


def _cifar(name: str, shape: tuple[int, int, int, int], slots: tuple[str, ...]) -> TaskSpec:
    base, blocks, kernel, pools = shape
    host = CnnShape(3, 32, blocks, base, kernel, pools)
    return TaskSpec(name, "cifar10", host, slots, 150, 512, 24, "standard", _SGD, _SGD_GRAFT, _IMAGE_LOSS, True)


def _text(name: str, dataset: str, shape: LmShape, lr: float, pace: str) -> TaskSpec:
    horizon, batch, batches, windows = (30, 16, 24, 64) if pace == "quick" else (100, 32, 96, 256)
    host, graft = Optim(lr, weight_decay=0.1), Optim(lr)
    slots = _row(0, shape.segments)
    return TaskSpec(name, dataset, shape, slots, horizon, batch, batches, pace, host, graft, _TEXT_LOSS, False, windows)


_SYNTH = TaskSpec(
    "synth_small",
    "synth",
    CnnShape(3, 16, 2, 4, 3, 2),
    _row(0, 2),
    40,
    64,
    32,
    "standard",
    _SGD,
    _SGD_GRAFT,
    _IMAGE_LOSS,
)

_ALL = (
    _digits("digits_tiny", 2),
    _digits("digits_small", 4),
    _SYNTH,
    _cifar("cifar_baseline", (8, 3, 3, 3), _row(0, 3)),
    _cifar("cifar_scale", (8, 5, 3, 5), _row(0, 5)),
    _cifar("cifar_impaired", (1, 3, 1, 3), _row(0, 3)),
    _cifar("cifar_minimal", (2, 3, 1, 0), _row(0, 3)),
    _cifar("cifar_multichannel", (8, 3, 3, 3), _row(0, 3) + _row(1, 3)),
    _cifar("cifar_postpool", (16, 3, 3, 3), _row(1, 3)),
    _cifar("cifar_highres", (16, 3, 3, 3), _row(0, 3)),
    _cifar("cifar_deep_multichannel", (8, 5, 3, 5), _row(0, 5) + _row(1, 5)),
    _cifar("cifar_deep_impaired", (2, 5, 1, 5), _row(0, 5) + _row(1, 5)),
    _text("lm_tiny", "pydoc", LmShape(256, 64, 4, 3, 64, 0.0), 1e-3, "quick"),
    _text("tinystories", "text", LmShape(256, 384, 6, 6, 256, 0.1), 3e-4, "standard"),
)

TASKS: Mapping[str, TaskSpec] = {task.name: task for task in _ALL}


def get_task(name: str) -> TaskSpec:
    """Return a task by name; an unknown name raises ValueError with the known ones."""
    if name not in TASKS:
        raise ValueError(f"env.task {quoted(name)} is unknown; use one of {', '.join(TASKS)}")
    return TASKS[name]


REWARD_MODES = ("shaped", "simplified", "sparse", "escrow", "basic", "basic_plus", "minimal", "loss")
#: Modes that read contributions at every step, so fossils must be ablated always (environment.md 7).
CONTRIBUTION_MODES = frozenset({"shaped", "escrow", "basic", "basic_plus", "simplified"})
#: Policies that do not learn.
CONTROLS = (
    "noop",
    "random",
    "heuristic",
    "fixed_schedule",
    "fixed_early",
    "fixed_deep_first",
    "static_matched",
    "static_wide",
)

#: What may be grown, by id: the index is the action, and ids are never given away again.
BLUEPRINT_NAMES = (
    "noop",
    "conv_light",
    "attention",
    "norm",
    "depthwise",
    "bottleneck",
    "conv_small",
    "conv_heavy",
    "lora",
    "lora_large",
    "mlp_small",
    "mlp",
    "flex_attention",
)
#: What may grow in a host, in the order of the ids.
BLUEPRINTS: Mapping[Topology, tuple[str, ...]] = {
    "cnn": ("conv_light", "attention", "norm", "depthwise", "bottleneck", "conv_small", "conv_heavy"),
    "lm": ("attention", "norm", "lora", "lora_large", "mlp_small", "mlp"),
}
#: Action heads, in order; the first decides which of the others matter.
HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
