"""Tasks, policies and reward modes by name, with the facts that validation needs.

The API validates a spec without loading torch or an environment, so these facts are stated here;
a test on the worker's side compares them with what the hosts report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Facts of a morphogenesis task (environment.md 2 and 5.1).

    Attributes:
        dataset: name of the data set.
        topology: ``cnn`` or ``lm``.
        train_size: training examples (text: 0, windows are drawn at keyed offsets).
        val_size: validation examples (text: windows).
        all_slots: every slot of the host, action order.
        slots: slots enabled by default.
        horizon: env steps of an episode.
        batch_size: images or windows per batch.
        batches_per_step: batches per env step.
        pace: ``quick`` or ``standard``.
        augment: whether training images are cropped and flipped.
        host_params: parameters of the host without grafts.
        num_classes: classes or vocabulary size.
        host: default host optimiser settings.
        graft: default graft optimiser settings.
        loss: baseline, target and sigma of reward mode ``loss``; None where the mode is not defined.
    """

    dataset: str
    topology: str
    train_size: int
    val_size: int
    all_slots: tuple[str, ...]
    slots: tuple[str, ...]
    horizon: int
    batch_size: int
    batches_per_step: int
    pace: str
    augment: bool
    host_params: int
    num_classes: int
    host: Mapping[str, float]
    graft: Mapping[str, float]
    loss: Mapping[str, float] | None


_SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
_SGD_GRAFT = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}
_DIGITS_HOST = {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4}
_DIGITS_GRAFT = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
_CIFAR_LOSS = {"baseline": 2.3, "target": 0.3, "sigma": 0.05}
_DIGITS_LOSS = {"baseline": 2.3, "target": 0.1, "sigma": 0.05}
_TEXT_LOSS = {"baseline": 5.545, "target": 1.0, "sigma": 0.15}


def _row(row: int, columns: int) -> tuple[str, ...]:
    return tuple(f"r{row}c{column}" for column in range(columns))


def _cifar(columns: int, host_params: int, slots: tuple[str, ...] | None = None, pools: bool = True) -> Task:
    every = _row(0, columns) + (_row(1, columns) if pools else ())
    return Task(
        dataset="cifar10",
        topology="cnn",
        train_size=45_000,
        val_size=5_000,
        all_slots=every,
        slots=slots or _row(0, columns),
        horizon=150,
        batch_size=512,
        batches_per_step=24,
        pace="standard",
        augment=True,
        host_params=host_params,
        num_classes=10,
        host=_SGD,
        graft=_SGD_GRAFT,
        loss=_CIFAR_LOSS,
    )


def _digits(host_params: int) -> Task:
    return Task(
        dataset="digits",
        topology="cnn",
        train_size=1_085,
        val_size=357,
        all_slots=_row(0, 2) + _row(1, 2),
        slots=_row(0, 2),
        horizon=30,
        batch_size=64,
        batches_per_step=16,
        pace="quick",
        augment=False,
        host_params=host_params,
        num_classes=10,
        host=_DIGITS_HOST,
        graft=_DIGITS_GRAFT,
        loss=_DIGITS_LOSS,
    )


def _text(dataset: str, host_params: int, lr: float, horizon: int, batch: int, batches: int, pace: str) -> Task:
    adamw = {"lr": lr, "momentum": 0.9, "weight_decay": 0.1}
    return Task(
        dataset=dataset,
        topology="lm",
        train_size=0,
        val_size=64 if pace == "quick" else 256,
        all_slots=_row(0, 3),
        slots=_row(0, 3),
        horizon=horizon,
        batch_size=batch,
        batches_per_step=batches,
        pace=pace,
        augment=False,
        host_params=host_params,
        num_classes=256,
        host=adamw,
        graft={**adamw, "weight_decay": 0.0},
        loss=_TEXT_LOSS,
    )


_SIX = _row(0, 3) + _row(1, 3)
_TEN = _row(0, 5) + _row(1, 5)

TASKS: Mapping[str, Task] = {
    "digits_tiny": _digits(152),
    "digits_small": _digits(438),
    "synth_small": Task(
        dataset="synth",
        topology="cnn",
        train_size=4_096,
        val_size=1_024,
        all_slots=_row(0, 2) + _row(1, 2),
        slots=_row(0, 2),
        horizon=40,
        batch_size=64,
        batches_per_step=32,
        pace="standard",
        augment=False,
        host_params=510,
        num_classes=10,
        host=_SGD,
        graft=_SGD_GRAFT,
        loss=_CIFAR_LOSS,
    ),
    "cifar_baseline": _cifar(3, 6_418),
    "cifar_scale": _cifar(5, 99_922),
    "cifar_impaired": _cifar(3, 77),
    "cifar_minimal": _cifar(3, 164, pools=False),
    "cifar_multichannel": _cifar(3, 6_418, slots=_SIX),
    "cifar_postpool": _cifar(3, 24_346, slots=_row(1, 3)),
    "cifar_highres": _cifar(3, 24_346),
    "cifar_deep_multichannel": _cifar(5, 99_922, slots=_TEN),
    "cifar_deep_impaired": _cifar(5, 1_140, slots=_TEN),
    "lm_tiny": _text("pydoc", 170_560, 1e-3, 30, 16, 24, "quick"),
    "tinystories": _text("text", 10_844_160, 3e-4, 100, 32, 96, "standard"),
}

#: Dwell D, minimum prune age and the tempo choices by pace (environment.md 3.3).
PACES: Mapping[str, Mapping[str, int]] = {
    "standard": {"min_training_epochs": 10, "min_prune_age": 5, "embargo": 5, "shortest_tempo": 3},
    "quick": {"min_training_epochs": 2, "min_prune_age": 2, "embargo": 1, "shortest_tempo": 1},
}

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

BLUEPRINTS: Mapping[str, tuple[str, ...]] = {
    "cnn": ("conv_light", "attention", "norm", "depthwise", "bottleneck", "conv_small", "conv_heavy"),
    "lm": ("attention", "norm", "lora", "lora_large", "mlp_small", "mlp"),
}
HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
