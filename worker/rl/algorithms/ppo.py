"""Proximal policy optimisation: from a rollout read again to its update (Schulman et al. 2017).

Notable: one joint ratio over the causally relevant heads; true next observations at truncations;
values in PopArt units; LSTM minibatches of whole environment rows replayed from stored states with
resets inside; a KL stop and a finiteness gate before every step. Nothing reduces over runs.
Axes: T step, E environment, H heads, N choices; a minibatch has leading axes [B] or [T, e].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.sections import Ppo
from worker.rl.algorithms.base import Algorithm, Reading
from worker.rl.algorithms.base import Prepared as AnyPrepared
from worker.rl.algorithms.gae import gae
from worker.rl.algorithms.ppo_anchor import Anchored, anchor
from worker.rl.algorithms.ppo_loss import (
    LOSS_STATS,
    Batch,
    LossRule,
    Replay,
    Slopes,
    loss_of_outputs,
    normalise_advantages,
    ppo_loss,
    slopes_of_loss,
)
from worker.rl.config import entropy_coefficient, floor_scale, learning_rate
from worker.rl.cuda import Replayed, autocast
from worker.rl.heads import Floors
from worker.rl.learner import Learner, adam_step
from worker.rl.nets import strayed
from worker.rl.recurrence import Resets
from worker.rl.rollout import Rollout
from worker.rl.stacked_nets import StackedMLP, StackedNet
from worker.rl.stacks import stack_of_one

_KL_STOP_FACTOR = 1.5
_SETTLED_ROUND = 10
#: Metrics that are finite in every round of a healthy run.
_FINITE = ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "grad_norm")
_NORM_EPS = 1e-6


@dataclass(frozen=True)
class Prepared:
    """A rollout ready for its update, with the anchor pass's diagnostics.

    Attributes:
        replay: the whole rollout [T, E].
        rule: the loss in force.
        returns: [T, E] reward units.
        values: [T, E] reward units, V before the update.
        summary: [K] of ``Heads.summary``.
        anchor_gap: largest |anchor - rollout| of the joint log-probability, over 1 + the sum of 1 / std of Gaussians.
        adv_moments: mean and std of the raw advantages over unforced valid steps, and sigma_R.
    """

    replay: Replay
    rule: LossRule
    returns: Tensor
    values: Tensor
    summary: Tensor
    anchor_gap: float
    adv_moments: tuple[float, float, float]


def prepare(learner: Learner, rollout: Rollout, entropy_coef: float, floors: Floors | None) -> Prepared:
    """Run the anchor pass, bootstrap, move the return statistics and form advantages and targets."""
    anchored = anchor(learner, rollout, floors)
    ends = rollout.terminated, rollout.truncated
    discount = learner.cfg.gamma, learner.cfg.ppo.lambda_
    found = gae(anchored.rewards, anchored.values, anchored.next_values, *ends, discount)
    return complete(learner, rollout, anchored, found, entropy_coef, floors)


@torch.no_grad()
def complete(
    learner: Learner,
    rollout: Rollout,
    anchored: Anchored,
    estimated: tuple[Tensor, Tensor],
    entropy_coef: float,
    floors: Floors | None,
) -> Prepared:
    """Move the return statistics and form the batch of an update.

    Args:
        learner: whose round it was.
        rollout: of the round.
        anchored: what ``anchor`` returned of it.
        estimated: advantages and returns [T, E] of ``gae``.
        entropy_coef: in force.
        floors: in force.
    """
    T, cfg, (advantages, returns) = rollout.num_steps, learner.cfg, estimated
    choices, values, unforced = anchored.choices, anchored.values, anchored.choices.unforced
    if learner.popart is not None:
        learner.popart.update(returns[rollout.valid], learner.net.value_out)
    mean, std, sigma = _moments(learner, advantages[unforced], returns[rollout.valid])
    floor = cfg.ppo.adv_std_floor * sigma
    if cfg.ppo.adv_norm == "rollout":
        advantages = normalise_advantages(advantages, unforced.to(advantages.dtype), floor)
    batch = Batch(
        features=rollout.features[:T],
        ids=rollout.ids[:T],
        actions=rollout.actions,
        rows=choices.rows,
        relevant=choices.relevant,
        old_log_prob=anchored.terms.log_prob,
        old_value=_normalise(learner, values),
        target=_normalise(learner, returns),
        advantage=advantages,
        valid=rollout.valid.to(values.dtype),
        unforced=unforced.to(values.dtype),
        open_steps=choices.open_steps.to(values.dtype),
        entropy_scale=1.0 / choices.unit,
        pixels=None if rollout.pixels is None else rollout.pixels[:T],
    )
    wanted = cfg.ppo.entropy_head_weights
    by_head = [wanted.get(name, 1.0) for name in learner.heads.names]
    weights = torch.tensor(by_head, device=learner.device) if wanted else None
    rule = LossRule(cfg, learner.heads, entropy_coef, floors, floor, weights)
    replay = Replay(batch, rollout.initial_state, anchored.resets)
    return Prepared(replay, rule, returns, values, anchored.summary, anchored.gap, (mean, std, sigma))


@dataclass
class Tally:
    """What the minibatches of one run's update have come to.

    Attributes:
        history: statistics of each loss that was computed.
        norms: gradient norms of the steps that were taken.
        non_finite: steps left out because something was not finite.
        stop_epoch: epoch of the KL stop; NaN without one.
    """

    history: list[Tensor] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    non_finite: int = 0
    stop_epoch: float = math.nan

    @property
    def stopped(self) -> bool:
        """Whether the KL stop has come."""
        return not math.isnan(self.stop_epoch)

    def scale(self, cfg: Ppo, stats: Tensor, gate: Sequence[float], epoch: int) -> float | None:
        """Take note of a minibatch; return the factor of its gradient, or None where no step may be taken.

        Args:
            cfg: of the run.
            stats: statistics of the loss.
            gate: loss, gradient norm and KL, on the host.
            epoch: in which it was.
        """
        self.history.append(stats)
        if not all(math.isfinite(g) for g in gate):
            self.non_finite += 1
            return None
        if cfg.target_kl is not None and gate[2] > _KL_STOP_FACTOR * cfg.target_kl:
            self.stop_epoch = float(epoch)
            return None
        self.norms.append(gate[1])
        return min(1.0, cfg.grad_clip / (gate[1] + _NORM_EPS))

    def close(self, learner: Learner, lr: float, rule: LossRule) -> dict[str, float]:
        """Count what this means for the learner and return the metrics of the update."""
        cfg, norms, done = learner.cfg.ppo, self.norms, len(self.norms)
        learner.dead_updates = 0 if done else learner.dead_updates + 1
        metrics = _summary(torch.stack(self.history), learner.heads.names)
        metrics |= {
            "kl_stop_epoch": self.stop_epoch,
            "steps_done": float(done),
            "steps_skipped": float(cfg.epochs * cfg.minibatches - done),
            "steps_non_finite": float(self.non_finite),
            "grad_norm": float(np.mean(norms)) if norms else math.nan,
            "grad_norm_clipped_frac": float(np.mean([n > cfg.grad_clip for n in norms])) if norms else math.nan,
            "lr": lr,
            "entropy_coef": float(rule.entropy_coef),
        }
        return metrics


def update(learner: Learner, prepared: Prepared, lr: float, order: np.random.Generator) -> dict[str, float]:
    """Run the epochs of one update in place and return its metrics (``ppo/`` names without the prefix).

    Args:
        learner: changed: parameters and optimiser.
        prepared: from ``prepare``.
        lr: learning rate of the round.
        order: generator of stream ``minibatch_order``.

    Raises:
        RuntimeError: the network has parameters that the optimiser does not reach.
    """
    cfg, tally, stack = learner.cfg.ppo, Tally(), stack_of_one(learner)
    if lost := strayed(learner.net, learner.flat):
        raise RuntimeError(f"parameters outside the vector that the optimiser changes: {', '.join(lost)}")
    for epoch in range(cfg.epochs):
        if tally.stopped:
            break
        for replay in _minibatches(learner, prepared.replay, order):
            stats, may = loss_and_grad(learner, replay, prepared.rule, stack)
            # the one transfer of a minibatch: may this step be taken?
            scale = tally.scale(cfg, stats, may.tolist(), epoch)
            if tally.stopped:
                break
            if scale is not None:
                adam_step(learner.flat, learner.adam, lr, cfg.adam_eps, scale)
    return tally.close(learner, lr, prepared.rule)


def _summary(history: Tensor, head_names: list[str]) -> dict[str, float]:
    names = list(LOSS_STATS)
    if history.shape[1] > len(names):
        names += [f"{kind}_{head}" for head in head_names for kind in ("approx_kl", "clip_frac")]
    mean = dict(zip(names, history.mean(0).tolist(), strict=True))
    lowest, highest = (part.tolist() for part in history.aminmax(dim=0))
    mean["approx_kl_max"], mean["ratio_max"], mean["ratio_min"] = highest[3], highest[5], lowest[6]
    return mean


def _minibatches(learner: Learner, whole: Replay, order: np.random.Generator) -> Iterator[Replay]:
    count, batch = learner.cfg.ppo.minibatches, whole.batch
    if not learner.net.recurrent:
        flat = batch.map(lambda x: x.flatten(0, 1))
        index = torch.from_numpy(order.permutation(len(flat.valid))).to(flat.valid.device)
        sizes = np.diff(np.linspace(0, len(index), count + 1).round().astype(int)).tolist()
        shuffled = [getattr(flat, name)[index].split(sizes) for name in flat.names]
        yield from (Replay(Batch(*parts), (), ()) for parts in zip(*shuffled, strict=True))
        return
    rows = torch.from_numpy(order.permutation(batch.valid.shape[1])).to(batch.valid.device)
    for part in rows.tensor_split(count):
        yield Replay(
            batch.map(lambda x, p=part: x[:, p]),  # type: ignore[misc]
            tuple(s[:, part] for s in whole.state),
            tuple(_resets_of(whole.resets, part)),
        )


def _resets_of(resets: Resets, envs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield resets for some environments; where none of them begins an episode there is none.

    On a GPU asking that would be a synchronisation for each.
    """
    for t, keep in resets:
        own = keep[envs]
        if own.is_cuda or not bool(own.all()):
            yield t, own


def _moments(learner: Learner, advantages: Tensor, returns: Tensor) -> tuple[float, float, float]:
    sigma = returns.std(correction=0) if learner.popart is None else torch.tensor(learner.popart.std)
    if advantages.numel() == 0:
        return math.nan, math.nan, float(sigma)
    mean, std = torch.stack([advantages.mean(), advantages.std(correction=0)]).tolist()
    return mean, std, float(sigma)


def _normalise(learner: Learner, values: Tensor) -> Tensor:
    return values if learner.popart is None else learner.popart.normalise(values)


def loss_and_grad(
    learner: Learner, replay: Replay, rule: LossRule, stack: StackedNet | None = None
) -> tuple[Tensor, Tensor]:
    """Fill the flat gradient; return the loss statistics and [loss, gradient norm, KL].

    On CUDA a minibatch without resets inside is one graph replay.

    Args:
        learner: whose gradient it is.
        replay: a minibatch.
        rule: in force.
        stack: of ``stack_of_one``.
    """
    flat = learner.flat
    if flat.data.is_cuda and not replay.resets:
        return _replayed(learner, replay, rule)
    if stack is None:
        flat.grad.zero_()
        with autocast(flat.data.device, learner.cfg.precision):
            loss, stats = ppo_loss(learner.net, replay, rule)
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        loss, stats = _through_stack(stack, replay, rule)
    return stats, torch.stack([loss.detach(), flat.grad.norm(), stats[3]])


def _through_stack(stack: StackedNet, replay: Replay, rule: LossRule) -> tuple[Tensor, Tensor]:
    """Fill the gradient with that of a minibatch; return loss and statistics, as a run of a stack has them."""
    batch, lead = replay.batch, replay.batch.valid.shape
    features = batch.features.flatten(0, -2).unsqueeze(0)

    def laid(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return logits.view(*lead, *logits.shape[2:]), values.view(lead)

    def judge(logits: Tensor, values: Tensor) -> Slopes:
        found = slopes_of_loss(*laid(logits, values), batch, rule)
        return replace(found, by_logits=found.by_logits.view_as(logits), by_values=found.by_values.view_as(values))

    if isinstance(stack, StackedMLP):
        judged = stack.learn(features, judge)
        return judged.loss, judged.stats
    state = tuple(part.unsqueeze(0) for part in replay.state)
    resets = [(t, keep.unsqueeze(0)) for t, keep in replay.resets]
    return stack.learn(features, lambda *found: loss_of_outputs(*laid(*found), batch, rule), state, resets)


def _replayed(learner: Learner, replay: Replay, rule: LossRule) -> tuple[Tensor, Tensor]:
    """``loss_and_grad`` as a graph; what changes between rounds comes in as tensors."""
    names = replay.batch.names
    numbers = [torch.full((), float(value), device=learner.device) for value in (rule.entropy_coef, rule.adv_floor)]
    floors = [] if rule.floors is None else [rule.floors.value, rule.floors.allowed]
    # an input though it never changes: the tensor of another round lies elsewhere, and a graph reads by address
    by_head = [] if rule.head_weights is None else [rule.head_weights]
    inputs = [*(getattr(replay.batch, name) for name in names), *replay.state, *numbers, *by_head, *floors]

    def run(parts: list[Tensor]) -> list[Tensor]:
        state = tuple(parts[len(names) : len(names) + len(replay.state)])
        coefficient, least, *rest = parts[len(names) + len(state) :]
        batch = replace(replay.batch, **dict(zip(names, parts, strict=False)))
        own = replace(
            rule,
            entropy_coef=coefficient,
            adv_floor=least,
            head_weights=rest.pop(0) if by_head else None,
            floors=Floors(*rest) if floors else None,
        )
        with autocast(learner.device, learner.cfg.precision):
            loss, stats = ppo_loss(learner.net, replace(replay, batch=batch, state=state), own)
        grads = torch.autograd.grad(loss, list(learner.net.parameters()), allow_unused=True, materialize_grads=True)
        torch.cat([part.reshape(-1) for part in grads], out=learner.flat.grad)
        return [stats, torch.stack([loss.detach(), learner.flat.grad.norm(), stats[3]])]

    key = (*replay.batch.rows.shape, len(floors))
    if key not in learner.graphs:
        learner.graphs[key] = Replayed(run, inputs)
    stats, gate = learner.graphs[key](inputs)
    return stats.clone(), gate


def value_metrics(prepared: Prepared, rollout: Rollout) -> dict[str, float]:
    """Return how well V predicts, and the raw advantages' moments."""
    returns, values = prepared.returns[rollout.valid].double(), prepared.values[rollout.valid].double()
    moments = [
        returns.var(correction=0),
        (returns - values).var(correction=0),
        ((returns - values) ** 2).mean(),
    ]
    spread, unexplained, square = torch.stack(moments).tolist()
    mean, std, sigma = prepared.adv_moments
    return {
        "explained_variance": 1.0 - unexplained / spread if spread > 0 else math.nan,
        "value_nrmse": math.sqrt(square / spread) if spread > 0 else math.nan,
        "adv_mean_raw": mean,
        "adv_std_raw": std,
        "return_sigma": sigma,
    }


def round_metrics(prepared: Prepared, rollout: Rollout, updated: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a round: those of its update, of the anchor pass and of the values."""
    return {**updated, "anchor_gap_max": prepared.anchor_gap, **value_metrics(prepared, rollout)}


def detectors(round_index: int, metrics: Mapping[str, float]) -> Iterator[Reading]:
    """Yield the readings of an update; what is not finite in a healthy run is bad at once."""
    yield Reading("non_finite", float(sum(not math.isfinite(metrics[f"ppo/{n}"]) for n in _FINITE)), 0.0, streak=1)
    yield Reading("ratio_max", metrics["ppo/ratio_max"], 5.0, streak=1)
    yield Reading("ratio_min", metrics["ppo/ratio_min"], 0.1, above=False, streak=1)
    yield Reading("approx_kl", metrics["ppo/approx_kl"], 0.1)
    if math.isfinite(metrics["ppo/value_nrmse"]):
        yield Reading("value_nrmse", metrics["ppo/value_nrmse"], 2.0)
        if round_index >= _SETTLED_ROUND:
            yield Reading("explained_variance", metrics["ppo/explained_variance"], -0.5, above=False)
    rms = metrics.get("ppo/lstm_h_rms", math.nan)
    if math.isfinite(rms):
        yield Reading("lstm_rms_high", rms, 10.0)
        yield Reading("lstm_rms_low", rms, 1e-6, above=False)


def _floors(learner: Learner, round_index: int, never: Mapping[str, tuple[int, ...]]) -> Floors | None:
    ppo = learner.cfg.ppo
    return Floors.build(learner.heads, ppo.prob_floor, never, floor_scale(ppo, round_index, learner.cfg.rounds))


def _prepare(learner: Learner, rollout: Rollout, round_index: int, floors: Floors | None) -> Prepared:
    return prepare(learner, rollout, entropy_coefficient(learner.cfg.ppo, round_index), floors)


def _update(
    learner: Learner, rollout: Rollout, prepared: AnyPrepared, round_index: int, order: np.random.Generator
) -> dict[str, float]:
    if not isinstance(prepared, Prepared):
        raise TypeError("the update takes what its own preparation made")
    lr = learning_rate(learner.cfg.ppo, round_index, learner.cfg.rounds)
    return round_metrics(prepared, rollout, update(learner, prepared, lr, order))


ALGORITHM = Algorithm(
    name="ppo",
    floors=_floors,
    prepare=_prepare,
    update=_update,
    detectors=detectors,
    essential=("policy_loss", "value_loss", "approx_kl", "clip_frac"),
)
