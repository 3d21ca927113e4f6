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
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from worker.rl.algorithms.base import Due, Stacking
from worker.rl.algorithms.ppo import Prepared, Tally, round_metrics
from worker.rl.algorithms.ppo_loss import Batch, Replay, StackedRule, ppo_loss
from worker.rl.config import learning_rate
from worker.rl.learner import ADAM_BETAS, Adam, Learner, adam_step
from worker.rl.nets import FlatParameters, StackedMLP
from worker.rl.stacks import mlp_of, net_key, rows_of

#: Most runs in one product: more of them fall out of the caches, fewer share less of what every call costs.
_AT_ONCE = 20
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
        self.net = StackedMLP(mlp_of(learners[0]), self.data, self.grad)
        rules = [run.prepared.rule for run in runs]
        self.rule = StackedRule(
            cfg=learners[0].cfg,
            heads=learners[0].heads,
            entropy_coef=torch.tensor([rule.entropy_coef for rule in rules]),
            adv_floor=torch.tensor([rule.adv_floor for rule in rules]),
            value_coef=torch.tensor([run.cfg.value_coef for run in runs]),
            head_weights=rules[0].head_weights,
        )

    def loss_and_grad(self, batch: Batch) -> tuple[Tensor, list[list[float]]]:
        """Fill the gradients; return the statistics [.., R], and loss, gradient norm and KL of each run."""
        self.grad.zero_()
        loss, stats = ppo_loss(self.net, Replay(batch, (), ()), self.rule)
        self.net.backward(loss)
        # the one transfer of a minibatch
        gates = torch.stack([loss.detach(), self.grad[:, : self.size].norm(dim=1), stats[3]], dim=1).tolist()
        return stats, gates

    def step(self, scales: Sequence[float | None]) -> None:
        """Take an Adam step in every run whose gradient has a factor."""
        taken = [scale for scale in scales if scale is not None]
        if len(taken) == len(self.runs):
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
        self.data.add_((self.m * _column(rates)).div_(spread))

    def give_back(self) -> None:
        """Lay parameters, gradients and moments of every run where they belong."""
        for row, learner in enumerate(run.learner for run in self.runs):
            for own, part in (
                (learner.flat.data, self.data),
                (learner.flat.grad, self.grad),
                (learner.adam.m, self.m),
                (learner.adam.v, self.v),
            ):
                own.copy_(part[row, : self.size])


def _update(due: Sequence[Due]) -> list[dict[str, float]]:
    runs = [_Run(item) for item in due]
    cfg, whole, working = runs[0].cfg, _whole(runs), _Working(runs)
    for epoch in range(cfg.epochs):
        if all(run.tally.stopped for run in runs):
            break
        for batch in _minibatches(runs, whole):
            rows = [row for row, run in enumerate(runs) if not run.tally.stopped]
            if len(rows) < len(working.runs):
                working.give_back()
                if not rows:
                    break
                working = _Working([runs[row] for row in rows])
            stats, gates = working.loss_and_grad(batch if len(rows) == len(runs) else _rows_of(batch, rows))
            columns = zip(working.runs, stats.unbind(1), gates, strict=True)
            working.step([run.tally.scale(run.cfg, of_run, gate, epoch) for run, of_run, gate in columns])
    working.give_back()
    return [
        round_metrics(run.prepared, run.due.rollout, run.tally.close(run.learner, run.lr, run.prepared.rule))
        for run in runs
    ]


def _whole(runs: Sequence[_Run]) -> Batch:
    """Return the transitions of all runs, one run after the other: [R N, ..]."""
    flat = [run.prepared.replay.batch.map(lambda x: x.flatten(0, 1)) for run in runs]
    return Batch(**{name: torch.cat([getattr(batch, name) for batch in flat]) for name in flat[0].names})


def _minibatches(runs: Sequence[_Run], whole: Batch) -> Iterator[Batch]:
    """Yield the minibatches of an epoch, [R, B, ..]; the order within each run is drawn from its own stream."""
    num_runs, count = len(runs), runs[0].cfg.minibatches
    length = len(whole.valid) // num_runs
    order = np.stack([run.due.order.permutation(length) + row * length for row, run in enumerate(runs)])
    stops = np.linspace(0, length, count + 1).round().astype(int)
    parts = [order[:, first:stop] for first, stop in itertools.pairwise(stops)]
    index = torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]))
    sizes = [part.size for part in parts]
    shuffled = [getattr(whole, name)[index].split(sizes) for name in whole.names]
    for pieces in zip(*shuffled, strict=True):
        yield Batch(*pieces).map(lambda x: x.view(num_runs, len(x) // num_runs, *x.shape[1:]))


def _rows_of(batch: Batch, rows: list[int]) -> Batch:
    return batch.map(lambda x: x[rows])


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


STACKING = Stacking(key, update)
