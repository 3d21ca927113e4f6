"""The PPO update of several runs at once: one forward and one backward a minibatch for all of them.

Parameters and optimiser of each run are laid into rows of common matrices for the time of the update and laid back
after it. Every run keeps its own minibatches, learning rate, gradient norm, finiteness gate, KL stop and Adam steps;
one that stops leaves the matrices, the others go on. A run's numbers are those of ``ppo.update`` bit for bit: products
are batched, so that each run's is one of its own, and every sum is taken per run in the order in which it is alone.
Axes: R run, N transition of a round, B row of a minibatch, P parameter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from worker.rl.algorithms.base import Due, Played, Stacking
from worker.rl.algorithms.gae import gae
from worker.rl.algorithms.ppo import Prepared, Tally, complete, round_metrics
from worker.rl.algorithms.ppo_anchor import Anchored, Recorded, Reread, anchor, checked, reread
from worker.rl.algorithms.ppo_loss import Batch, Replay, StackedRule, loss_of_outputs, slopes_of_loss
from worker.rl.config import entropy_coefficient, learning_rate
from worker.rl.learner import ADAM_BETAS, Adam, Learner, adam_step
from worker.rl.nets import FlatParameters, State
from worker.rl.rollout import Rollout
from worker.rl.stacked_nets import StackedMLP
from worker.rl.stacks import net_key, rows_of, stacked

#: Most runs in one product: more of them fall out of the caches, fewer share less of what every call costs.
_AT_ONCE = 20
#: Parameters of a run from which on its Adam step is faster by itself: all that enters it stays in the caches.
_WIDE = 2**16
#: Most transitions that are read again in one product.
_ROWS_AT_ONCE = 8192
#: Settings of ``ppo`` that may differ between the runs of a stack, because each is applied to its run alone.
_OWN = frozenset(
    {
        "lr",
        "lr_schedule",
        "lr_end_frac",
        "gamma",
        "lambda_",
        "target_kl",
        "value_coef",
        "entropy_coef_start",
        "entropy_coef_end",
        "entropy_anneal_rounds",
        "adv_std_floor",
        "grad_clip",
    }
)


def key(learner: Learner, num_steps: int) -> Hashable | None:
    """Return what runs must have in common to be updated together; None where this run is updated alone."""
    ppo, common = learner.cfg.ppo, net_key(learner)
    if common is None or ppo.ratio != "joint" or any(floor > 0 for floor in ppo.prob_floor.values()):
        return None
    return common, (num_steps, learner.num_envs), ppo.model_dump_json(exclude=set(_OWN))


def prepare(played: Sequence[Played], alone: Callable[[int], AbstractContextManager[object]]) -> dict[int, Prepared]:
    """Make rounds of runs of one key ready for their updates; the scan of the advantages is one for all."""
    anchored: dict[int, Anchored] = {}
    portion = max(1, _ROWS_AT_ONCE // played[0].rollout.valid.numel())
    for first in range(0, len(played), portion):
        items = played[first : first + portion]
        again = (
            None
            if items[0].learner.net.recurrent
            else _reread([i.learner for i in items], [i.rollout for i in items]).unbind()
        )
        for place, item in enumerate(items):
            with alone(first + place):
                anchored[first + place] = (
                    anchor(item.learner, item.rollout, item.floors)
                    if again is None
                    else checked(item.learner, item.rollout, again[place])
                )
    prepared: dict[int, Prepared] = {}
    for index, estimated in _advantages(played, anchored).items():
        item = played[index]
        with alone(index):
            coefficient = entropy_coefficient(item.learner.cfg.ppo, item.round_index)
            prepared[index] = complete(item.learner, item.rollout, anchored[index], estimated, coefficient, item.floors)
    return prepared


@torch.no_grad()
def _reread(learners: Sequence[Learner], rollouts: Sequence[Rollout]) -> Reread:
    """Return what ``anchor`` rereads of rollouts of feed-forward policies, [R, T, E, ..]."""
    steps, shape = rollouts[0].num_steps, rollouts[0].valid.shape
    net = stacked(learners[0], rows_of([learner.flat.data for learner in learners]))
    features = torch.stack([rollout.features[:steps].flatten(0, 1) for rollout in rollouts])
    logits, values = net.sequence(features, features, (), ())
    parts = [Recorded.of(rollout) for rollout in rollouts]
    recorded = Recorded(
        actions=torch.stack([part.actions for part in parts]),
        log_probs=torch.stack([part.log_probs for part in parts]),
        valid=torch.stack([part.valid for part in parts]),
        masks={name: torch.stack([part.masks[name] for part in parts]) for name in parts[0].masks},
    )
    wide = logits.view(len(parts), *shape, *logits.shape[2:])
    return reread(learners[0].heads, wide, values.view(-1, *shape), recorded, None)


def _advantages(played: Sequence[Played], anchored: Mapping[int, Anchored]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return advantages and returns [T, E] of each run: those of equal discounts are environments of one scan."""
    alike: dict[tuple[float, float], list[int]] = {}
    for index in anchored:
        cfg = played[index].learner.cfg
        alike.setdefault((cfg.gamma, cfg.ppo.lambda_), []).append(index)
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for discount, members in alike.items():
        inputs = [
            (own.rewards, own.values, own.next_values, rollout.terminated, rollout.truncated)
            for own, rollout in ((anchored[index], played[index].rollout) for index in members)
        ]
        wide = [torch.cat(parts, dim=1) for parts in zip(*inputs, strict=True)]
        both = gae(wide[0], wide[1], wide[2], wide[3], wide[4], discount)
        envs = inputs[0][0].shape[1]
        # contiguous, as alone: sums depend on it
        columns = zip(*([part.contiguous() for part in torch.split(whole, envs, dim=1)] for whole in both), strict=True)
        found |= dict(zip(members, columns, strict=True))
    return found


def update(due: Sequence[Due]) -> list[dict[str, float]]:
    """Update runs of one key in place and return the metrics of each, as ``ppo.ALGORITHM.update`` does one by one."""
    metrics: list[dict[str, float]] = []
    portion = math.ceil(len(due) / math.ceil(len(due) / _AT_ONCE))
    for start in range(0, len(due), portion):
        metrics += _update(due[start : start + portion])
    return metrics


class _Run:
    """One run of an update: whose it is and what its minibatches have come to."""

    def __init__(self, due: Due) -> None:
        if not isinstance(due.prepared, Prepared):
            raise TypeError("the update takes what its own preparation made")
        self.due, self.learner, self.prepared = due, due.learner, due.prepared
        self.cfg = self.learner.cfg.ppo
        self.lr = learning_rate(self.cfg, due.round_index, self.learner.cfg.rounds)
        self.tally = Tally()


class _Working:
    """Parameters, gradients and optimisers of the runs that still take steps, a row each [R, S], S >= P."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self.runs, self.size = list(runs), runs[0].learner.flat.data.numel()
        learners = [run.learner for run in runs]
        self.data = rows_of([learner.flat.data for learner in learners])
        self.grad = torch.zeros_like(self.data)
        self.m = rows_of([learner.adam.m for learner in learners])
        self.v = rows_of([learner.adam.v for learner in learners])
        self.net = stacked(learners[0], self.data, self.grad)
        rules = [run.prepared.rule for run in runs]
        self.rule = StackedRule(
            cfg=learners[0].cfg,
            heads=learners[0].heads,
            entropy_coef=torch.tensor([rule.entropy_coef for rule in rules]),
            adv_floor=torch.tensor([rule.adv_floor for rule in rules]),
            value_coef=torch.tensor([run.cfg.value_coef for run in runs]),
            head_weights=rules[0].head_weights,
        )

    def loss_and_grad(self, replay: Replay) -> tuple[Tensor, list[list[float]]]:
        """Fill the gradients; return the statistics [.., R], and loss, gradient norm and KL of each run."""
        batch, net = replay.batch, self.net
        if isinstance(net, StackedMLP):
            found = net.learn(batch.features, partial(slopes_of_loss, batch=batch, rule=self.rule))
            loss, stats = found.loss, found.stats
        else:
            loss_of = partial(loss_of_outputs, batch=batch, rule=self.rule)
            loss, stats = net.learn(batch.features, loss_of, replay.state, replay.resets)
        # the one transfer of a minibatch
        norms = torch.linalg.vector_norm(self.grad[:, : self.size], dim=1)
        gates = torch.stack([loss, norms, stats[3]], dim=1).tolist()
        return stats, gates

    def step(self, scales: Sequence[float | None]) -> None:
        """Take an Adam step in every run whose gradient has a factor."""
        taken = [scale for scale in scales if scale is not None]
        if len(taken) == len(self.runs) and self.size < _WIDE:
            self._step_all(taken)
            return
        for row, (run, scale) in enumerate(zip(self.runs, scales, strict=True)):
            if scale is not None:
                own = (part[row, : self.size] for part in (self.data, self.grad, self.m, self.v))
                data, grad, m, v = own
                adam = Adam(m, v, run.learner.adam.steps)
                adam_step(FlatParameters(data, grad), adam, run.lr, run.cfg.adam_eps, scale)
                run.learner.adam.steps = adam.steps

    def _step_all(self, scales: Sequence[float]) -> None:
        """``adam_step`` for all rows; what differs between runs stands in columns."""
        (beta1, beta2), eps = ADAM_BETAS, self.runs[0].cfg.adam_eps
        for run in self.runs:
            run.learner.adam.steps += 1
        counts = [run.learner.adam.steps for run in self.runs]
        if any(scale != 1.0 for scale in scales):
            self.grad.mul_(_column(scales))
        self.m.lerp_(self.grad, 1.0 - beta1)
        self.v.mul_(beta2).addcmul_(self.grad, self.grad, value=1.0 - beta2)
        spread = self.v.sqrt().div_(_column([math.sqrt(1.0 - beta2**n) for n in counts])).add_(eps)
        rates = [-run.lr / (1.0 - beta1**n) for run, n in zip(self.runs, counts, strict=True)]
        self.data.addcdiv_(self.m * _column(rates), spread)

    def give_back(self) -> None:
        """Lay parameters, gradients and moments of every run where they belong."""
        learners = [run.learner for run in self.runs]
        for part, own in (
            (self.data, [learner.flat.data for learner in learners]),
            (self.grad, [learner.flat.grad for learner in learners]),
            (self.m, [learner.adam.m for learner in learners]),
            (self.v, [learner.adam.v for learner in learners]),
        ):
            torch._foreach_copy_(own, part[:, : self.size].unbind())


def _update(due: Sequence[Due]) -> list[dict[str, float]]:
    runs = [_Run(item) for item in due]
    cfg, whole, working = runs[0].cfg, _Whole.of(runs), _Working(runs)
    for epoch in range(cfg.epochs):
        if all(run.tally.stopped for run in runs):
            break
        for replay in _minibatches(runs, whole):
            rows = [row for row, run in enumerate(runs) if not run.tally.stopped]
            if len(rows) < len(working.runs):
                working.give_back()
                if not rows:
                    break
                working = _Working([runs[row] for row in rows])
            stats, gates = working.loss_and_grad(replay if len(rows) == len(runs) else _rows_of(replay, rows))
            columns = zip(working.runs, stats.unbind(1), gates, strict=True)
            working.step([run.tally.scale(run.cfg, of_run, gate, epoch) for run, of_run, gate in columns])
    working.give_back()
    return [
        round_metrics(run.prepared, run.due.rollout, run.tally.close(run.learner, run.lr, run.prepared.rule))
        for run in runs
    ]


@dataclass(frozen=True)
class _Whole:
    """The rounds of all runs.

    Attributes:
        batch: transitions, one run after the other: [R N, ..].
        envs: E of each run.
        state: recurrent state before the first step, each part [R, E, layers, hidden].
        resets: steps at which an episode begins in any of them, with ``keep`` [R, E].
    """

    batch: Batch
    envs: int
    state: State
    resets: list[tuple[int, Tensor]]

    @classmethod
    def of(cls, runs: Sequence[_Run]) -> _Whole:
        """Lay the rounds of runs side by side."""
        replays = [run.prepared.replay for run in runs]
        flat, envs = (
            [replay.batch.map(lambda x: x.flatten(0, 1)) for replay in replays],
            replays[0].batch.valid.shape[1],
        )
        batch = Batch(**{name: torch.cat([getattr(part, name) for part in flat]) for name in flat[0].names})
        states = zip(*(replay.state for replay in replays), strict=True)
        kept = [dict(replay.resets) for replay in replays]
        whole = torch.ones(envs)
        steps = sorted({t for resets in kept for t in resets}) if runs[0].learner.net.recurrent else []
        resets = [(t, torch.stack([own.get(t, whole) for own in kept])) for t in steps]
        return cls(batch, envs, tuple(torch.stack(parts).transpose(1, 2) for parts in states), resets)


def _minibatches(runs: Sequence[_Run], whole: _Whole) -> Iterator[Replay]:
    """Yield the minibatches of an epoch, [R, B, ..]; the order within each run is drawn from its own stream.

    A network with memory takes whole environments, step by step; any other takes single transitions.
    """
    num_runs, batch, recurrent = len(runs), whole.batch, runs[0].learner.net.recurrent
    length = len(batch.valid) // num_runs
    drawn = np.stack([run.due.order.permutation(whole.envs if recurrent else length) for run in runs])
    parts = _parts(drawn, runs[0].cfg.minibatches, recurrent=recurrent)
    rows = [_transitions(part, whole.envs, length) if recurrent else part for part in parts]
    first = np.arange(num_runs)[:, None] * length
    index = np.concatenate([(first + part).reshape(-1) for part in rows])
    sizes = [part.size for part in rows]
    # numpy's, which copies rows in a third of the time and less
    taken = [torch.from_numpy(getattr(batch, name).numpy().take(index, axis=0)) for name in batch.names]
    shuffled = [torch.split_with_sizes(part, sizes) for part in taken]
    for part, *pieces in zip(parts, *shuffled, strict=True):
        wide = Batch(*pieces).map(lambda x: x.view(num_runs, len(x) // num_runs, *x.shape[1:]))
        yield Replay(wide, *_memory_of(whole, part)) if recurrent else Replay(wide, (), ())


def _parts(drawn: np.ndarray, count: int, *, recurrent: bool) -> list[np.ndarray]:
    """Cut an order [R, N] as the update of one run does."""
    if recurrent:
        return np.array_split(drawn, count, axis=1)
    stops = np.linspace(0, drawn.shape[1], count + 1).round().astype(int)
    return [drawn[:, first:stop] for first, stop in itertools.pairwise(stops)]


def _transitions(envs: np.ndarray, num_envs: int, length: int) -> np.ndarray:
    """Return which transitions [R, T e] environments [R, e] have, step by step."""
    found: np.ndarray = np.arange(0, length, num_envs)[:, None] + envs[:, None, :]
    return found.reshape(len(envs), -1)


def _memory_of(whole: _Whole, envs: np.ndarray) -> tuple[State, tuple[tuple[int, Tensor], ...]]:
    """Return the first state, each part [R, layers, e, hidden], and the resets of environments [R, e]."""
    chosen = torch.arange(len(envs)).unsqueeze(1), torch.from_numpy(envs)
    state = tuple(part[chosen].transpose(1, 2).contiguous() for part in whole.state)
    return state, tuple((t, keep[chosen]) for t, keep in whole.resets)


def _rows_of(replay: Replay, rows: list[int]) -> Replay:
    return Replay(
        replay.batch.map(lambda x: x[rows]),
        tuple(part[rows] for part in replay.state),
        tuple((t, keep[rows]) for t, keep in replay.resets),
    )


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


STACKING = Stacking(key, prepare, update)
