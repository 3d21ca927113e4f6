"""The sections of a spec: every field with its default, range and unit (training.md 5.1).

Models are strict, frozen and refuse unknown keys. A field whose default depends on the task is
``None`` here and filled by ``lockstep.spec.resolve.resolve``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag

from lockstep.spec.tasks import Optim
from lockstep.text import Id, Name, Note, Word

#: Magnitudes that training computes with: float32 holds them and their squares in full precision (1.2e-38 to 3.4e38).
SMALLEST, LARGEST = 1e-18, 1e18


def _check_magnitude(value: float) -> float:
    if value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        reason = f"float32, in which training computes, cannot hold {value:g} and its square"
        raise ValueError(f"{reason}; use a magnitude from {SMALLEST:g} to {LARGEST:g}")
    return value


Text = Annotated[str, Field(max_length=200)]
Real = Annotated[FiniteFloat, AfterValidator(_check_magnitude)]
Positive = Annotated[FiniteFloat, Field(gt=0), AfterValidator(_check_magnitude)]
NonNegative = Annotated[FiniteFloat, Field(ge=0), AfterValidator(_check_magnitude)]
#: Far beyond every count, and inside the integers that arrays hold.
MOST = 10**9
Count = Annotated[int, Field(ge=1, le=MOST)]
Countable = Annotated[int, Field(ge=0, le=MOST)]
Unit = Annotated[FiniteFloat, Field(ge=0, le=1)]
_SLOTS, _EPISODE = "@slots", "@episode"
Scalar = bool | int | FiniteFloat | str | None


class Section(BaseModel):
    """Base of all sections: closed, frozen, strict, addressed by the public (alias) names."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Experiment(Section):
    """What the experiment is called and how often it is repeated."""

    name: Name = Field(description="Free text; a label, never an identifier")
    kind: Literal["ab", "aa"] = Field("ab", description="aa: identical arms, a check of the machinery")
    seed: int = Field(42, ge=0, le=2**63 - 1, description="Root random seed")
    replicates: int = Field(6, ge=1, le=1000, description="Planned blocks; 6 is the least for p <= 0.05")
    notes: Annotated[Note, Field(max_length=20_000)] = Field("", description="Free text")
    tags: tuple[Word, ...] = Field((), max_length=32, description="Free words to find the experiment by")
    priority: int = Field(50, ge=0, le=100, description="Higher is served first")
    mode: Literal["full", "smoke"] = Field("full", description="smoke: one replicate of two rounds")
    tuning: tuple[str, ...] = Field((), max_length=100, description="Experiments whose seed is refused here")


class FinishedEpisode(Section):
    """An evaluation episode of a finished run, whose final grafts a static control copies."""

    run: str = Field(max_length=40, description="Run id")
    episode: Countable = Field(description="Evaluation episode of its last evaluation, greedy where it has both")


def _static_form(value: Any) -> str:
    named = isinstance(value, FinishedEpisode) or (isinstance(value, dict) and "run" in value)
    return _EPISODE if named else _SLOTS


StaticSet = Annotated[
    Annotated[dict[str, str], Tag(_SLOTS)] | Annotated[FinishedEpisode, Tag(_EPISODE)], Discriminator(_static_form)
]


class Arm(Section):
    """A named variant."""

    label: str = Field(pattern=r"^[A-Za-z0-9_-]{1,32}$", description="group_id of the arm")
    policy: str = Field(
        "ppo", max_length=64, description="An algorithm (ppo), or a control of the family that does not learn"
    )
    reward: str | None = Field(None, description="Short for the override reward.mode")
    overrides: dict[str, Any] = Field(default_factory=dict, description="Dot paths to values")
    static_set: StaticSet | None = Field(
        None,
        description="Grafts of a static control: {slot: blueprint}, or {run, episode} of a finished run, which the "
        "server replaces by what grew there",
    )


class Budget(Section):
    """How long a run lasts; env steps = rounds x n_envs x horizon, equal for all arms."""

    rounds: int = Field(100, ge=1, le=100_000, description="Rounds of a run")


class Governor(Section):
    """Thresholds of the safety governor, in multiples of ln(classes) (environment.md 8)."""

    window: int = Field(20, ge=5, le=1000, description="Finite validation losses kept")
    nonfinite_batches: Count = Field(3, description="Batches with a non-finite gradient that panic")
    explosion: Positive = Field(4.0, description="Loss above this many ln K panics")
    collapse_best: Positive = Field(0.6, description="Best loss below this many ln K ..")
    collapse_band: Positive = Field(0.065, description=".. and loss within this many ln K of ln K")
    collapse_min_samples: Count = Field(10, description="Samples before collapse is judged")
    divergence: Positive = Field(1.5, description="Loss above this many ln K may be an anomaly")
    divergence_ratio: Positive = Field(2.0, description=".. and above this multiple of the best")
    divergence_mad: Positive = Field(6.0, description=".. and above median + this many robust deviations")
    divergence_floor: Positive = Field(0.01, description="Least robust deviation, in ln K")
    divergence_min_samples: Count = Field(5, description="Samples before divergence is judged")
    divergence_streak: Count = Field(3, description="Anomalies in a row that panic")
    snapshot_every: Count = Field(5, description="Steps between snapshots")


class Env(Section):
    """The task and the shape of an episode."""

    kind: str = Field("morphogenesis", max_length=64, description="Family: morphogenesis or gymnasium")
    id: Annotated[Id, Field(max_length=128)] | None = Field(None, description="Registered id (gymnasium)")
    task: str = Field("digits_tiny", description="Registered task (morphogenesis)")
    n_envs: int = Field(8, ge=1, le=4096, description="Environments per arm")
    horizon: int | None = Field(None, ge=1, le=100_000, description="Env steps; default: the task's")
    horizon_end: Literal["terminated", "truncated"] = Field(
        "terminated", description="Whether the last step of an episode ends the task or cuts it (bootstrap)"
    )
    gamma: FiniteFloat | None = Field(
        None, gt=0, le=1, exclude=True, description="Discount of the task; a resolved spec shows it as ppo.gamma"
    )
    rollout_steps: int = Field(128, ge=1, le=100_000, description="Steps per round (gymnasium)")
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        exclude_if=lambda value: value is None,  # as eval.max_steps: older specs keep their hash
        description="Gymnasium: steps after which an episode is truncated; default: the environment's own limit",
    )
    reward_scale: Positive | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Factor of the rewards that a policy learns from; scores stay as they are",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        # left out of the resolved spec while it is not given, so that specs from before it keep their hash
        exclude_if=lambda value: value == 1,
        description="Processes in which the environments of a block step side by side, for slow simulators; no number "
        "depends on it (gymnasium, not batched simulators)",
    )
    wrappers: tuple[str, ...] = Field(
        (),
        max_length=8,
        description="mask_velocity: the velocities of a classic task read 0; atari: a game of ale-py as published "
        "(gymnasium)",
    )
    kwargs: dict[str, Scalar] = Field(default_factory=dict, description="JSON scalars (gymnasium)")
    slots: tuple[str, ...] | None = Field(None, min_length=1, description="Slots; default: the task's")
    max_grafts: Count | None = Field(None, description="Active plus fossilised grafts per host")
    param_budget: Count | None = Field(None, description="Graft parameters per host")
    batch_size: Count | None = Field(None, description="Images per batch; default: the task's")
    batches_per_step: Count | None = Field(None, description="Batches per env step; default: the task's")
    val_images: int | None = Field(None, ge=200, le=MOST, description="Images per validation; null = whole split")
    augment: bool | None = Field(None, description="Crop and flip; default: the task's")
    min_training_epochs: Countable | None = Field(None, description="Dwell D; null = of the pace")
    min_prune_age: Countable | None = Field(None, description="Steps; null = of the pace")
    embargo: Countable | None = Field(None, description="Steps; null = of the pace")
    pace: Literal["standard", "quick"] | None = Field(None, description="Time constants; default: the task's")
    train_signal: Literal["shadow", "ste"] = Field(
        "shadow", description="How a blending graft is trained: beside the host or through it"
    )
    sequential_development: bool = Field(True, description="At most one slot develops at a time")
    ablate_fossils: Literal["always", "final"] = Field("always", description="When fossilised grafts are ablated")
    shapley: Literal["last", "always"] = Field("last", description="When Shapley values are measured")
    gates: Literal["permissive", "strict"] = Field("permissive", description="How strict the stage gates are")
    auto_advance: tuple[Literal["g1", "g2", "g3"], ...] = Field((), description="Gates that are passed without an op")
    velocity_ema: FiniteFloat = Field(0.7, ge=0, lt=1, description="Weight of the old value")
    governor: Governor = Field(default_factory=Governor, description="When an episode is ended for divergence")


class Optimiser(Section):
    """Optimiser of the host or of its grafts; text tasks use AdamW."""

    lr: Positive | None = Field(None, description="Learning rate; default: the task's")
    momentum: FiniteFloat | None = Field(None, ge=0, lt=1, description="SGD momentum")
    weight_decay: NonNegative | None = Field(None, description="Default: the task's")
    grad_clip: Positive = Field(Optim.grad_clip, description="Norm, separate for host and each graft")


class Ppo(Section):
    """Proximal policy optimisation (training.md 1)."""

    lr: Positive = Field(3e-4, description="Adam learning rate")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("linear", description="Course of lr over the rounds")
    lr_end_frac: Unit = Field(0.1, description="Final learning rate as a share of lr")
    adam_eps: Positive = Field(1e-5, description="Added to the root of Adam's second moment")
    gamma: FiniteFloat = Field(0.995, gt=0, le=1, description="Discount")
    lambda_: FiniteFloat = Field(0.98, gt=0, le=1, alias="lambda", description="GAE lambda")
    clip: FiniteFloat = Field(0.2, gt=0, lt=1, description="Ratio clip")
    ratio: Literal["joint", "per_head"] = Field(
        "joint", description="Clip the ratio of the joint action or of each head"
    )
    epochs: int = Field(4, ge=1, le=50, description="Passes over a rollout")
    minibatches: Count = Field(4, description="LSTM: at most n_envs")
    target_kl: Positive | None = Field(0.015, description="nats; stop at 1.5 times this")
    value_coef: NonNegative = Field(0.5, description="Weight of the value loss")
    value_clip: Positive | None = Field(None, description="In the units the value head predicts")
    entropy_coef_start: NonNegative = Field(0.05, description="Weight of the entropy loss at round 0")
    entropy_coef_end: NonNegative = Field(0.01, description="The same after entropy_anneal_rounds; at most the start")
    entropy_anneal_rounds: Count | None = Field(None, description="Default: budget.rounds")
    entropy_normalised: bool = Field(True, description="Entropies as shares of ln n, else nats")
    entropy_head_weights: dict[str, NonNegative] = Field(
        default_factory=dict, description="Weight of a head's entropy; 1 where not named"
    )
    prob_floor: dict[str, Annotated[FiniteFloat, Field(ge=0, le=0.2)]] = Field(
        default_factory=dict, description="Least probability of a choice per head, annealed to 0"
    )
    prob_floor_end_frac: FiniteFloat = Field(
        0.5, gt=0, le=1, description="Share of the rounds after which floors are 0"
    )
    adv_norm: Literal["rollout", "minibatch", "none"] | None = Field(
        None, description="Default: rollout for lstm, minibatch for mlp"
    )
    adv_std_floor: NonNegative = Field(0.1, description="Times the return scale")
    grad_clip: Positive = Field(5.0, description="Global norm")
    aux_coef: NonNegative = Field(
        0.0, description="Weight of a contribution predictor, which is not built: anything but 0 is refused"
    )


#: Default of ``action.bounds``.
CLIP = "clip"


class Action(Section):
    """How real-numbered actions (Box spaces) reach the environment; what is recorded is the sample before it."""

    bounds: Literal["clip", "rescale", "tanh"] | None = Field(
        None,
        description="clip (default): the sample, clipped; rescale: clipped to [-1, 1], then mapped to the bounds; "
        "tanh: its tanh, mapped",
    )


class Net(Section):
    """Body of the policy network."""

    body: Literal["mlp", "lstm"] = Field("lstm", description="Feed-forward or recurrent")
    hidden: int = Field(512, ge=8, le=4096, description="Units of a body layer")
    lstm_hidden: int = Field(512, ge=8, le=4096, description="Units of the LSTM")
    lstm_layers: int = Field(1, ge=1, le=4, description="Layers of the LSTM")
    encoder: Literal["auto", "nature", "small", "none"] | None = Field(
        None,
        # left out of the resolved spec while it is not given, so that specs from before it keep their hash
        exclude_if=lambda value: value is None,
        description="Of images: auto (default) = nature (Mnih et al. 2015) from edges of 36, else small",
    )


class ObsNorm(Section):
    """Running observation statistics; never shared live between arms (training.md 1.15)."""

    enabled: bool = Field(True, description="Normalise observations by running statistics")
    sharing: Literal["per_arm", "shared_frozen"] = Field(
        "per_arm", description="Statistics of each arm, or calibrated once for all and frozen"
    )
    clip: Positive = Field(10.0, description="Bound of a normalised value, standard deviations")
    calibration_episodes: Count = Field(8, description="shared_frozen only")


class Precision(Section):
    """Number formats, equal for all arms; fp16 is refused."""

    policy: Literal["fp32", "bf16"] = Field("fp32", description="Of policy networks; fp16 is refused")
    host: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="Of hosts in training; auto = bf16 on CUDA from capability 8.0"
    )
    tf32: bool = Field(False, description="Allow TF32 products on CUDA")


class Engine(Section):
    """How the hosts' training step is executed; one value for all arms."""

    path: Literal["auto", "eager", "captured", "fused"] = Field(
        "auto",
        description="How hosts step; auto = fused (else captured) on CUDA, eager on CPU",
    )


class Lockstep(Section):
    """Barrier, placement and common random numbers."""

    barrier: Literal["round", "none"] = Field("round", description="Whether arms wait for each other after every round")
    placement: Literal["auto", "one_per_device", "shared_device"] = Field(
        "auto",
        description="One device for all arms or one for each; auto: one for each where so many GPUs are free, unless "
        "the policies are so small that a worker trains them on its host",
    )
    crn: Literal["full", "environment"] = Field(
        "full", description="What arms share: all draws, or those of the environment alone"
    )
    deterministic: bool = Field(True, description="Deterministic algorithms only")
    barrier_timeout_seconds: FiniteFloat = Field(
        1800.0, ge=30, le=86_400, description="s; a longer wait is a lost peer"
    )
    grace_seconds: FiniteFloat = Field(60.0, ge=1, le=60, description="s between SIGTERM and the end")
    pack: Literal["auto"] | Annotated[int, Field(ge=1, le=32)] = Field(
        "auto",
        # left out of the resolved spec while it is not given, so that specs from before it keep their hash
        exclude_if=lambda value: value == "auto",
        description="Replicates that one worker trains side by side in one process, at most; no number depends on it. "
        "auto: an even share of those that wait where their runs can be stacked, else 1",
    )


class Eval(Section):
    """Frozen-policy evaluation."""

    every_rounds: Count = Field(10, description="Rounds between evaluations; the last is always evaluated")
    episodes: int | None = Field(None, ge=1, le=10_000, description="Default 16; gymnasium 100")
    max_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        # left out of the resolved spec while it is not given, so that specs from before it keep their hash
        exclude_if=lambda value: value is None,
        description="Gymnasium: steps after which an episode is cut; default: the environment's limit, else 100,000",
    )
    mode: Literal["greedy", "sample", "both"] = Field(
        "greedy", description="How frozen policies choose; the first of both is the primary"
    )
    xeval: bool = Field(True, description="Score each policy under every arm's reward")
    xeval_modes: tuple[str, ...] = Field((), max_length=16, description="Further modes that score the final evaluation")
    twin: bool = Field(True, description="Also evaluate an ungrafted host on the same streams")


class Checkpoint(Section):
    """How often a block can be resumed from."""

    every_rounds: Count = Field(5, description="Rounds between checkpoints")
    keep: Count = Field(2, description="Checkpoints kept besides the final one")


class Telemetry(Section):
    """How much is recorded; never changes the numbers."""

    level: Literal["minimal", "normal", "debug"] = Field("normal", description="How much is stored; changes no number")
    grad_stride: Count = Field(10, description="Rounds between gradient norms of each parameter; level debug only")
