"""The anchor pass: the networks read a rollout again as the update will, and must say what they said when acting.

Ratios of the update are taken to what is read here, not to what acting recorded; a gap between the
two beyond rounding is a bug. Values of the true next observations come from the same networks.
Axes: T step, E environment, H heads, N choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.rl.algorithms.gae import gae
from worker.rl.cuda import anchor_limit, autocast
from worker.rl.heads import Choices, Floors, Heads, HeadTerms, evaluate
from worker.rl.learner import Learner
from worker.rl.recurrence import Resets
from worker.rl.rollout import PolicyError, Rollout

#: Parameters beyond this, which no policy that learns comes near, make of rounding what would else show a bug.
_RUNAWAY = 10.0


class AnchorMismatch(RuntimeError):  # noqa: N818 - the name is the specification's
    """The sequence path does not reproduce the rollout's log-probabilities: a bug, never noise."""


@dataclass(frozen=True)
class Anchored:
    """A rollout after the anchor pass; all [T, E] but for the axis of heads.

    Attributes:
        rewards: scaled, as they enter the advantages.
        values: reward units, V before the update.
        next_values: reward units, V of the true next observation.
        choices: what the executed actions were chosen among.
        terms: log-probabilities and entropies of the executed actions.
        summary: [K] of ``Heads.summary``.
        resets: where episodes begin.
        gap: as in ``Prepared``.
    """

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    choices: Choices
    terms: HeadTerms
    summary: Tensor
    resets: tuple[tuple[int, Tensor], ...]
    gap: float


@dataclass(frozen=True)
class Recorded:
    """What a rollout recorded of acting; leading axes [T, E], or [R, T, E] of several runs."""

    actions: Tensor
    log_probs: Tensor
    valid: Tensor
    masks: Mapping[str, Tensor]

    @classmethod
    def of(cls, rollout: Rollout) -> Recorded:
        """Return that of one run."""
        masks = {name: mask[: rollout.num_steps] for name, mask in rollout.masks.items()}
        return cls(rollout.actions, rollout.log_probs, rollout.valid, masks)


@dataclass(frozen=True)
class Reread:
    """What the networks, as the update runs them, say of what was recorded; leading axes as there.

    Attributes:
        values: [..] in units of the value head.
        choices, terms, summary: as in ``Anchored``.
        lawless: [] or [R] bool, a relevant head of a valid step had no legal choice.
        finite: [] or [R] bool, all joint log-probabilities are.
        gap: [] or [R], as in ``Prepared``.
    """

    values: Tensor
    choices: Choices
    terms: HeadTerms
    summary: Tensor
    lawless: Tensor
    finite: Tensor
    gap: Tensor

    def unbind(self) -> list[Reread]:
        """Return that of each of several runs."""
        terms = map(HeadTerms, self.terms.log_prob.unbind(), self.terms.entropy.unbind())
        told = (part.unbind() for part in (self.summary, self.lawless, self.finite, self.gap))
        return list(map(Reread, self.values.unbind(), self.choices.unbind(), terms, *told))


def reread(heads: Heads, logits: Tensor, values: Tensor, recorded: Recorded, floors: Floors | None) -> Reread:
    """Hold logits [.., H, N] and values [..] against what was recorded."""
    choices = heads.choices(recorded.masks, recorded.actions, recorded.valid)
    lawless = (choices.legal == 0) & choices.relevant & recorded.valid.unsqueeze(-1)
    terms = evaluate(heads, logits, recorded.actions, choices.rows, choices.relevant, floors)
    log_prob = terms.log_prob.sum(-1)
    # rounding of a mean moves the log-density of a Gaussian by its share of the standard deviation
    gaps = (log_prob - recorded.log_probs).abs() / (1.0 + heads.sharpness(logits))
    gap = torch.where(recorded.valid, gaps, 0.0).flatten(-2).amax(-1)
    return Reread(
        values=values,
        choices=choices,
        terms=terms,
        summary=heads.summary(choices, recorded.actions, recorded.valid, terms.entropy),
        lawless=lawless.flatten(-3).any(-1),
        finite=log_prob.isfinite().flatten(-2).all(-1),
        gap=gap,
    )


@torch.no_grad()
def anchor(learner: Learner, rollout: Rollout, floors: Floors | None) -> Anchored:
    """Run the networks over a rollout as the update will, and check them against what acted."""
    steps, ended = rollout.num_steps, rollout.terminated | rollout.truncated
    resets = tuple(
        (t + 1, (~ended[t]).to(rollout.features.dtype))
        for t, any_end in enumerate(ended[:-1].any(1).tolist() if learner.net.recurrent else ())
        if any_end
    )
    features, ids = rollout.features[:steps], rollout.ids[:steps]
    pixels = None if rollout.pixels is None else rollout.pixels[:steps]
    with autocast(features.device, learner.cfg.precision):
        logits, values = learner.net.sequence(features, ids, rollout.initial_state, resets, pixels)
    torch.clear_autocast_cache()
    return checked(
        learner, rollout, reread(learner.heads, logits, values.float(), Recorded.of(rollout), floors), resets
    )


@torch.no_grad()
def checked(learner: Learner, rollout: Rollout, again: Reread, resets: Resets = ()) -> Anchored:
    """Check what networks say of a rollout again, and bootstrap."""
    rewards = rollout.rewards * learner.cfg.reward_scale
    if learner.reward_scaler is not None:
        rewards = learner.reward_scaler(rewards, rollout.terminated | rollout.truncated, rollout.valid)
    _initialise_returns(learner, rollout, rewards)
    with autocast(rewards.device, learner.cfg.precision):
        ahead = next_values(learner, rollout, again.values)
    torch.clear_autocast_cache()
    if bool(again.lawless):
        raise PolicyError("a relevant head had no legal choice: the environment's masks are wrong")
    gap = _check_anchor(again, learner)
    values = _denormalise(learner, again.values)
    return Anchored(rewards, values, ahead, again.choices, again.terms, again.summary, tuple(resets), gap)


def next_values(learner: Learner, rollout: Rollout, raw_values: Tensor) -> Tensor:
    """Return V of the true next observation [T, E] in reward units."""
    needed = rollout.truncated & rollout.valid
    needed[-1] |= ~rollout.terminated[-1]
    result = torch.cat([raw_values[1:], raw_values[-1:]])
    steps = [t for t, some in enumerate(needed.any(1).tolist()) if some]
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


def _check_anchor(again: Reread, learner: Learner) -> float:
    if not bool(again.finite):
        raise PolicyError("anchor pass: non-finite log-probability")
    precision = learner.cfg.precision
    gap, limit = float(again.gap), anchor_limit(again.gap.device, precision)
    if gap > limit:
        largest = float(learner.flat.data.abs().max())
        if largest > _RUNAWAY:
            raise PolicyError(f"anchor pass: with parameters of up to {largest:.3g} rounding decides")
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


def _denormalise(learner: Learner, values: Tensor) -> Tensor:
    return values if learner.popart is None else learner.popart.denormalise(values)
