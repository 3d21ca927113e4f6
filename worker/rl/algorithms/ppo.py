"""Proximal policy optimisation, top to bottom: anchor, advantages, loss, update (Schulman et al. 2017).

Notable: one joint ratio over the causally relevant heads; true next observations at truncations;
values in PopArt units; LSTM minibatches of whole environment rows replayed from stored states with
resets inside; a KL stop and a finiteness gate before every step. Nothing reduces over runs.
Axes: T step, E environment, H heads, N choices; a minibatch has leading axes [B] or [T, e].

Generalised advantage estimation as one reverse scan over [T, E] (Schulman et al. 2016, eq. 16).

The bootstrap is V of the *true* next observation: the caller passes it per step, so a truncated
step sees its final observation and a reset observation never enters. Axes: T step, E environment.
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
from worker.rl.algorithms.ppo_loss import LOSS_STATS, Batch, Loss, LossRule, Replay, normalise_advantages, ppo_loss
from worker.rl.config import entropy_coefficient, floor_scale, learning_rate
from worker.rl.cuda import Replayed, anchor_limit, autocast
from worker.rl.heads import Floors, evaluate
from worker.rl.learner import Learner, adam_step
from worker.rl.nets import strayed
from worker.rl.rollout import PolicyError, Rollout


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, both [T, E] in reward units.

    Args:
        rewards: [T, E].
        values: [T, E], V(s_t), de-normalised.
        next_values: [T, E], V of the true next observation x_{t+1}.
        terminated: [T, E] bool, no bootstrap and no carry beyond this step.
        truncated: [T, E] bool, bootstrap but no carry beyond this step.
        discount: (gamma, lambda).
    """
    gamma, lam = discount
    alive = (~terminated).to(rewards.dtype)
    carry = gamma * lam * (~(terminated | truncated)).to(rewards.dtype)
    # delta_t = r_t + gamma (1 - term_t) V(x_{t+1}) - V(s_t)
    delta = rewards + gamma * alive * next_values - values
    # A_t = delta_t + gamma lambda (1 - end_t) A_{t+1}
    after = torch.zeros_like(delta[0])
    backwards = []
    for step, keep in zip(delta.flip(0).unbind(), carry.flip(0).unbind(), strict=True):
        after = torch.addcmul(step, keep, after)
        backwards.append(after)
    advantages = torch.stack(backwards).flip(0)
    return advantages, advantages + values


_KL_STOP_FACTOR = 1.5
_SETTLED_ROUND = 10
#: Metrics that are finite in every round of a healthy run.
_FINITE = ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "grad_norm")
_NORM_EPS = 1e-6


class AnchorMismatch(RuntimeError):  # noqa: N818 - the name is the specification's
    """The sequence path does not reproduce the rollout's log-probabilities: a bug, never noise."""


@dataclass(frozen=True)
class Prepared:
    """A rollout ready for its update, with the anchor pass's diagnostics.

    Attributes:
        replay: the whole rollout [T, E].
        rule: the loss in force.
        returns: [T, E] reward units.
        values: [T, E] reward units, V before the update.
        entropy: [T, E, H] nats.
        anchor_gap: largest |anchor - rollout| of the joint log-probability, over 1 + the sum of 1 / std of Gaussians.
        adv_moments: mean and std of the raw advantages over unforced valid steps, and sigma_R.
    """

    replay: Replay
    rule: LossRule
    returns: Tensor
    values: Tensor
    entropy: Tensor
    anchor_gap: float
    adv_moments: tuple[float, float, float]


@torch.no_grad()
def prepare(learner: Learner, rollout: Rollout, entropy_coef: float, floors: Floors | None) -> Prepared:
    """Run the anchor pass, bootstrap, move the return statistics and form advantages and targets."""
    T, cfg = rollout.num_steps, learner.cfg
    ended = rollout.terminated | rollout.truncated
    rewards = rollout.rewards * cfg.reward_scale
    if learner.reward_scaler is not None:
        rewards = learner.reward_scaler(rewards, ended, rollout.valid)
    resets = tuple(
        (t + 1, (~ended[t]).to(rollout.features.dtype))
        for t, any_end in enumerate(ended[:-1].any(1).tolist())
        if any_end
    )
    features, ids = rollout.features[:T], rollout.ids[:T]
    pixels = None if rollout.pixels is None else rollout.pixels[:T]
    with autocast(features.device, cfg.precision):
        logits, raw_values = learner.net.sequence(features, ids, rollout.initial_state, resets, pixels)
        _initialise_returns(learner, rollout, rewards)
        next_values = _next_values(learner, rollout, raw_values.float())
    torch.clear_autocast_cache()
    rows = learner.heads.mask_rows({k: m[:T] for k, m in rollout.masks.items()}, rollout.actions)
    relevant = learner.heads.relevant(rollout.actions)
    if bool((relevant & rollout.valid.unsqueeze(-1) & ~rows.any(-1)).any()):
        raise PolicyError("a relevant head had no legal choice: the environment's masks are wrong")
    terms = evaluate(learner.heads, logits, rollout.actions, rows, relevant, floors)
    gap = _check_anchor(terms.log_prob.sum(-1), rollout, cfg.precision, learner.heads.sharpness(logits))
    values = _denormalise(learner, raw_values.float())
    discount = (cfg.gamma, cfg.ppo.lambda_)
    advantages, returns = gae(rewards, values, next_values, rollout.terminated, rollout.truncated, discount)
    if learner.popart is not None:
        learner.popart.update(returns[rollout.valid], learner.net.value_out)
    # forced: one legal choice in every relevant head, hence exactly one joint action
    legal = rows.sum(-1)
    open_steps = (legal > 1) & relevant & rollout.valid.unsqueeze(-1)
    unforced = open_steps.any(-1)
    mean, std, sigma = _moments(learner, advantages[unforced], returns[rollout.valid])
    floor = cfg.ppo.adv_std_floor * sigma
    if cfg.ppo.adv_norm == "rollout":
        advantages = normalise_advantages(advantages, unforced.to(advantages.dtype), floor)
    batch = Batch(
        features=features,
        ids=ids,
        actions=rollout.actions,
        rows=rows,
        relevant=relevant,
        old_log_prob=terms.log_prob,
        old_value=_normalise(learner, values),
        target=_normalise(learner, returns),
        advantage=advantages,
        valid=rollout.valid.to(values.dtype),
        unforced=unforced.to(values.dtype),
        open_steps=open_steps.to(values.dtype),
        entropy_scale=1.0 / learner.heads.entropy_unit(rows),
        pixels=pixels,
    )
    wanted = cfg.ppo.entropy_head_weights
    by_head = [wanted.get(name, 1.0) for name in learner.heads.names]
    weights = torch.tensor(by_head, device=learner.device) if wanted else None
    rule = LossRule(cfg, learner.heads, entropy_coef, floors, floor, weights)
    replay = Replay(batch, rollout.initial_state, resets)
    return Prepared(replay, rule, returns, values, terms.entropy, gap, (mean, std, sigma))


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
    cfg, tally = learner.cfg.ppo, Tally()
    if lost := strayed(learner.net, learner.flat):
        raise RuntimeError(f"parameters outside the vector that the optimiser changes: {', '.join(lost)}")
    for epoch in range(cfg.epochs):
        if tally.stopped:
            break
        for replay in _minibatches(learner, prepared.replay, order):
            stats, may = loss_and_grad(learner, replay, prepared.rule, ppo_loss)
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
    mean["approx_kl_max"] = float(history[:, 3].max())
    mean["ratio_max"], mean["ratio_min"] = float(history[:, 5].max()), float(history[:, 6].min())
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
            tuple((t, keep[part]) for t, keep in whole.resets),
        )


def _next_values(learner: Learner, rollout: Rollout, raw_values: Tensor) -> Tensor:
    """Return V of the true next observation [T, E] in reward units."""
    needed = rollout.truncated & rollout.valid
    needed[-1] |= ~rollout.terminated[-1]
    result = torch.cat([raw_values[1:], raw_values[-1:]])
    steps = needed.any(1).nonzero().flatten().tolist()
    if steps:
        ends = [(rollout.final(t), needed[t]) for t in steps]
        features = torch.cat([view.features[which] for view, which in ends])
        ids = torch.cat([view.ids[which] for view, which in ends])
        bytes_of = [view.pixels[which] for view, which in ends if view.pixels is not None]
        pixels = torch.cat(bytes_of) if bytes_of else None
        # the carried state: after step t, before any reset
        layers = range(len(rollout.initial_state))
        state = tuple(torch.cat([rollout.states[t][k][:, needed[t]] for t in steps], dim=1) for k in layers)
        result[needed] = learner.net.step_values(features, ids, state, pixels).float()
    return _denormalise(learner, result)


def _check_anchor(anchor: Tensor, rollout: Rollout, precision: str, sharpness: Tensor) -> float:
    if not bool(torch.isfinite(anchor).all()):
        raise PolicyError("anchor pass: non-finite log-probability")
    # rounding of a mean moves the log-density of a Gaussian by its share of the standard deviation
    gaps = torch.where(rollout.valid, (anchor - rollout.log_probs).abs() / (1.0 + sharpness), 0.0)
    gap, limit = float(gaps.max()), anchor_limit(anchor.device, precision)
    if gap > limit:
        raise AnchorMismatch(
            f"log-probabilities of rollout and sequence path differ by {gap:.3g} > {limit:g} ({precision})"
        )
    return gap


def _initialise_returns(learner: Learner, rollout: Rollout, rewards: Tensor) -> None:
    """Give PopArt its first statistics from the discounted rewards of the first round."""
    if learner.popart is None or learner.popart.rounds > 0:
        return
    zero = torch.zeros_like(rewards)
    gamma = learner.cfg.ppo.gamma
    _, returns = gae(rewards, zero, zero, rollout.terminated, rollout.truncated, (gamma, 1.0))
    learner.popart.update(returns[rollout.valid], learner.net.value_out)
    learner.popart.rounds = 1


def _moments(learner: Learner, advantages: Tensor, returns: Tensor) -> tuple[float, float, float]:
    sigma = returns.std(correction=0) if learner.popart is None else torch.tensor(learner.popart.std)
    if advantages.numel() == 0:
        return math.nan, math.nan, float(sigma)
    mean, std = torch.stack([advantages.mean(), advantages.std(correction=0)]).tolist()
    return mean, std, float(sigma)


def _normalise(learner: Learner, values: Tensor) -> Tensor:
    return values if learner.popart is None else learner.popart.normalise(values)


def _denormalise(learner: Learner, values: Tensor) -> Tensor:
    return values if learner.popart is None else learner.popart.denormalise(values)


def loss_and_grad(learner: Learner, replay: Replay, rule: LossRule, loss_of: Loss) -> tuple[Tensor, Tensor]:
    """Fill the flat gradient; return the loss statistics and [loss, gradient norm, KL].

    On CUDA a minibatch without resets inside is one graph replay.
    """
    flat = learner.flat
    if flat.data.is_cuda and not replay.resets:
        return _replayed(learner, replay, rule, loss_of)
    flat.grad.zero_()
    with autocast(flat.data.device, learner.cfg.precision):
        loss, stats = loss_of(learner.net, replay, rule)
    loss.backward()  # type: ignore[no-untyped-call]
    return stats, torch.stack([loss.detach(), flat.grad.norm(), stats[3]])


def _replayed(learner: Learner, replay: Replay, rule: LossRule, loss_of: Loss) -> tuple[Tensor, Tensor]:
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
            loss, stats = loss_of(learner.net, replace(replay, batch=batch, state=state), own)
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
