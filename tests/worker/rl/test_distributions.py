"""Every family of action heads against torch.distributions: densities, entropies, gradients, KL, draws (tasks.md 5)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
    kl_divergence,
)

from tests.worker.rl.cases import CPU, full_masks, learner_config, make_learner
from worker.envs.base import HeadSpec, Observation, Seen
from worker.rl.algorithms.ppo import prepare
from worker.rl.algorithms.ppo_loss import ppo_loss
from worker.rl.gaussian import LOG_STD_MAX, LOG_STD_MIN
from worker.rl.heads import Heads, choose, evaluate
from worker.rl.learner import noise_of
from worker.rl.rollout import Rollout

BOX = HeadSpec("action", 3, bounds=((-1.0, 1.0),) * 3)
SWITCHES = tuple(HeadSpec(f"switch_{i}", 2) for i in range(3))
MIXED = (HeadSpec("gear", 4), BOX, SWITCHES[0], HeadSpec("wheel", 1, bounds=((-2.0, 2.0),)))
FAMILIES = {
    "gaussian": ((BOX,), False),
    "tanh": ((BOX,), True),
    "choice": ((HeadSpec("action", 5),), False),
    "bernoulli": (SWITCHES, False),
    "mixed": (MIXED, False),
    "mixed_tanh": (MIXED, True),
}
EACH = pytest.mark.parametrize("family", list(FAMILIES))


def layout(family: str) -> Heads:
    specs, squashed = FAMILIES[family]
    return Heads.build(specs, CPU, squashed=squashed)


def outputs(heads: Heads, rng: np.random.Generator, rows: int) -> Tensor:
    return torch.from_numpy(0.7 * rng.standard_normal((rows, len(heads.specs), heads.width)))


def drawn(heads: Heads, logits: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    noise = noise_of(rng, (len(logits), heads.num_columns), heads.normal_columns)
    return choose(heads, logits, full_masks(heads.specs, len(logits)), torch.from_numpy(noise))


def rows_of(heads: Heads, actions: Tensor) -> Tensor:
    return heads.mask_rows(full_masks(heads.specs, len(actions)), actions)


def oracle(heads: Heads, logits: Tensor) -> list[Distribution]:
    """The distribution of each head before squashing."""
    return [
        Independent(Normal(logits[:, i, : h.size], logits[:, i, h.size : h.outputs].exp()), 1)
        if h.is_gaussian
        else Categorical(logits=logits[:, i, : h.size])
        for i, h in enumerate(heads.specs)
    ]


def expected_log_prob(heads: Heads, logits: Tensor, actions: Tensor) -> Tensor:
    found = []
    for spec, columns, law in zip(heads.specs, heads.columns, oracle(heads, logits), strict=True):
        taken = actions[:, columns].double() if spec.is_gaussian else actions[:, columns.start]
        if spec.is_gaussian and heads.squashed:
            squash = TanhTransform(cache_size=1)  # or its inverse would lose what tanh rounds to 1
            law, taken = TransformedDistribution(law, [squash]), squash(taken)
        found.append(law.log_prob(taken))
    return torch.stack(found, dim=-1)


@EACH
def test_log_density_entropy_and_gradients_equal_those_of_torch(family: str) -> None:
    heads, rng = layout(family), np.random.default_rng(3)
    logits = outputs(heads, rng, 50).requires_grad_()
    actions, joint = drawn(heads, logits.detach(), rng)
    terms = evaluate(heads, logits, actions, rows_of(heads, actions), None, None)
    log_prob = expected_log_prob(heads, logits, actions)
    entropy = torch.stack([law.entropy() for law in oracle(heads, logits)], dim=-1)
    torch.testing.assert_close(terms.log_prob, log_prob, atol=1e-6, rtol=0)
    torch.testing.assert_close(terms.entropy, entropy, atol=1e-6, rtol=0)
    torch.testing.assert_close(joint, log_prob.sum(-1).detach(), atol=1e-5, rtol=0, check_dtype=False)
    weights = torch.from_numpy(rng.standard_normal(log_prob.shape))
    for ours, theirs in ((terms.log_prob, log_prob), (terms.entropy, entropy)):
        [one] = torch.autograd.grad((ours * weights).sum(), logits, retain_graph=True)
        [two] = torch.autograd.grad((theirs * weights).sum(), logits, retain_graph=True)
        torch.testing.assert_close(one, two, atol=1e-6, rtol=0)


@EACH
def test_the_kl_that_is_estimated_is_that_of_torch_and_never_below_zero(family: str) -> None:
    heads, rng = layout(family), np.random.default_rng(4)
    old = outputs(heads, rng, 1)
    new = old + 0.1 * outputs(heads, rng, 1)
    n = 40_000
    actions, _ = drawn(heads, old.expand(n, -1, -1), rng)
    rows = rows_of(heads, actions)
    before, after = (
        evaluate(heads, x.expand(n, -1, -1), actions, rows, None, None).log_prob.sum(-1) for x in (old, new)
    )
    log_ratio = after - before
    estimate = log_ratio.exp() - 1 - log_ratio
    assert float(estimate.min()) > -1e-12
    exact = sum(float(kl_divergence(*pair)) for pair in zip(oracle(heads, old), oracle(heads, new), strict=True))
    assert float(estimate.mean()) == pytest.approx(exact, abs=4 * float(estimate.std()) / n**0.5)


@pytest.mark.parametrize("family", ["gaussian", "mixed_tanh"])
def test_draws_have_the_moments_and_greedy_is_the_mean(family: str) -> None:
    heads, rng = layout(family), np.random.default_rng(5)
    logits = outputs(heads, rng, 1)
    actions, _ = drawn(heads, logits.expand(40_000, -1, -1), rng)
    greedy, _ = choose(heads, logits, full_masks(heads.specs, 1), None)
    for index, (spec, columns) in enumerate(zip(heads.specs, heads.columns, strict=True)):
        if spec.is_gaussian:
            mean, std = logits[0, index, : spec.size], logits[0, index, spec.size : spec.outputs].exp()
            torch.testing.assert_close(greedy[0, columns].double(), mean, atol=1e-6, rtol=0)
            torch.testing.assert_close(actions[:, columns].double().mean(0), mean, atol=0.05, rtol=0)
            torch.testing.assert_close(actions[:, columns].double().std(0), std, atol=0.0, rtol=0.02)


def test_a_squashed_density_is_finite_where_tanh_is_one() -> None:
    heads = layout("tanh")
    logits = torch.zeros(1, 1, 6)
    far = torch.full((1, 3), 40.0)
    terms = evaluate(heads, logits, far, rows_of(heads, far), None, None)
    assert bool(torch.isfinite(terms.log_prob).all())


def test_the_spread_is_a_parameter_that_no_observation_enters_and_stays_within_its_bounds() -> None:
    learner = make_learner(learner_config("mlp"), (BOX,), 4, 2)
    spread = learner.net.outputs.log_std["0"]
    assert spread.tolist() == [0.0, 0.0, 0.0]
    first, _ = learner.net.step(torch.zeros(2, 4), torch.zeros(2, 0, dtype=torch.int64), ())
    assert float(first[..., :3].detach().abs().max()) < 0.05  # output layer of gain 0.01
    with torch.no_grad():
        spread.copy_(torch.tensor([-9.0, 0.5, 9.0]))
    logits, _ = learner.net.step(torch.randn(2, 4), torch.zeros(2, 0, dtype=torch.int64), ())
    assert logits[:, 0, 3:].tolist() == [[LOG_STD_MIN, 0.5, LOG_STD_MAX]] * 2
    assert "outputs.log_std.0" in dict(learner.net.named_parameters())


def test_the_loss_of_two_continuous_steps_is_the_one_computed_by_hand() -> None:
    gamma, lam, clip, entropy_coef, value_coef = 0.9, 0.8, 0.2, 0.01, 0.5
    cfg = learner_config("mlp", gamma=gamma, lambda_=lam, clip=clip, value_coef=value_coef, adv_norm="none")
    cfg = replace(cfg, gamma=gamma)
    learner = make_learner(cfg, (HeadSpec("action", 1, bounds=((-2.0, 2.0),)),), 1, 1)
    net, none = learner.net, torch.zeros(1, 0, dtype=torch.int64)
    views = [torch.tensor([[x]]) for x in (0.3, -0.6, 0.9)]
    final, noises, rewards = torch.tensor([[2.0]]), (0.5, -1.5), (1.0, -2.0)
    masks = full_masks(learner.heads.specs, 1)
    rollout = Rollout(2, learner.heads, None)
    rollout.begin(Observation(views[0], none), masks, ())
    for t in range(2):
        rollout.act(net, t, torch.tensor([[noises[t]]]), None)
        ended = torch.tensor([t == 1])
        seen = Seen(
            observation=Observation(views[t + 1], none),
            masks=masks,
            terminated=~ended & ended,
            truncated=ended,
            valid=torch.tensor([True]),
            final_observation=Observation(final, none) if t == 1 else None,
        )
        rollout.see(t, seen)
        rollout.pay(t, torch.tensor([rewards[t]]))

    def number(x: Tensor) -> float:
        return float(x.detach().squeeze())

    mu = [number(net.step(v, none, ())[0][0, 0, 0]) for v in views[:2]]
    value = [number(net.step_values(v, none, ())) for v in (*views[:2], final)]
    u = [m + n for m, n in zip(mu, noises, strict=True)]  # sigma = 1
    # delta_1 bootstraps the value of the true final observation, not that of the reset one
    delta = [rewards[t] + gamma * value[t + 1] - value[t] for t in range(2)]
    advantage = [delta[0] + gamma * lam * delta[1], delta[1]]
    prepared = prepare(learner, rollout, entropy_coef, None)
    assert prepared.returns.flatten().tolist() == pytest.approx(
        [a + v for a, v in zip(advantage, value, strict=False)], abs=1e-6
    )

    with torch.no_grad():  # the update has moved the policy: sigma = e^0.3
        net.outputs.log_std["0"].fill_(0.3)
    sigma = math.exp(0.3)

    def density(x: float, m: float, s: float) -> float:
        return math.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(2 * math.pi))

    rho = [density(u[t], mu[t], sigma) / density(u[t], mu[t], 1.0) for t in range(2)]
    gains = [min(r * a, max(min(r, 1 + clip), 1 - clip) * a) for r, a in zip(rho, advantage, strict=True)]
    entropy = 0.5 * math.log(2 * math.pi * math.e * sigma**2)
    errors = [advantage[t] ** 2 for t in range(2)]  # V - R = -A
    by_hand = -sum(gains) / 2 + value_coef * 0.5 * sum(errors) / 2 - entropy_coef * entropy
    loss, stats = ppo_loss(net, prepared.replay, prepared.rule)
    assert float(loss.detach()) == pytest.approx(by_hand, abs=1e-6)
    assert float(stats[3]) == pytest.approx(sum(r - 1 - math.log(r) for r in rho) / 2, abs=1e-6)
