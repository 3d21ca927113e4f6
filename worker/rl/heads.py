"""Factored actions: choices, masked, floored, sampled by inverse CDF; and Gaussian heads (training.md 1.3 to 1.6).

Head 0 decides which of the other heads are relevant. Irrelevant heads hold a canonical index and
contribute log-probability 0, entropy 0 and gradient 0. Axes: .. any leading axes (E, or T E),
H heads, N outputs of the widest head (padded ones are never legal), C columns of a row of actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name in every torch text

from worker.envs.base import HeadSpec
from worker.rl import gaussian

#: Logit of a masked choice: its probability is exactly 0 while p ln p stays finite in value and gradient.
MASKED = -1e9
#: Largest uniform that ``choose`` may be given: times a sum of FP32 probabilities it stays below that sum.
BELOW_ONE = 1.0 - 2.0**-22
#: Largest share of a distribution that probability floors may take.
MAX_FLOOR_MASS = 0.99


@dataclass(frozen=True)
class Heads:
    """Static layout of the heads of a policy.

    Attributes:
        specs: one per head, head 0 first.
        relevance: [choices of head 0, H] bool.
        canonical: [C], what is stored for an irrelevant head; its dtype is that of actions.
        width: N, the outputs of the widest head.
        always_relevant: whether every head is relevant for every choice of head 0.
        columns: of each head in a row of actions.
        gaussian: [H] bool, heads whose actions are real numbers.
        normal_columns: [C] bool, their columns; None where there is none.
        squashed: whether what Gaussian heads draw goes through tanh.
    """

    specs: tuple[HeadSpec, ...]
    relevance: Tensor
    canonical: Tensor
    width: int
    always_relevant: bool
    columns: tuple[slice, ...]
    gaussian: Tensor
    normal_columns: np.ndarray | None
    squashed: bool

    @classmethod
    def build(cls, specs: Sequence[HeadSpec], device: torch.device, *, squashed: bool = False) -> Heads:
        """Lay out ``specs``; a parent that does not precede its child raises ``ValueError``."""
        names = [spec.name for spec in specs]
        relevance = torch.ones(specs[0].size, len(specs), dtype=torch.bool)
        for index, spec in enumerate(specs):
            if any(parent not in names[:index] for parent in spec.parents):
                raise ValueError(f"head {spec.name!r}: parents {spec.parents} must be among {names[:index]}")
            if spec.relevant_ops is not None:
                relevance[:, index] = False
                relevance[list(spec.relevant_ops), index] = True
        stops = list(accumulate(spec.columns for spec in specs))
        normal = np.array([spec.is_gaussian for spec in specs for _ in range(spec.columns)])
        canonical = torch.tensor([spec.canonical for spec in specs for _ in range(spec.columns)])
        return cls(
            specs=tuple(specs),
            relevance=relevance.to(device),
            canonical=(canonical.float() if normal.any() else canonical).to(device),
            width=max(spec.outputs for spec in specs),
            always_relevant=bool(relevance.all()),
            columns=tuple(slice(stop - spec.columns, stop) for stop, spec in zip(stops, specs, strict=True)),
            gaussian=torch.tensor([spec.is_gaussian for spec in specs], device=device),
            normal_columns=normal if normal.any() else None,
            squashed=squashed,
        )

    @property
    def names(self) -> list[str]:
        """Names of the heads in order."""
        return [spec.name for spec in self.specs]

    @property
    def num_columns(self) -> int:
        """Return C."""
        return int(self.columns[-1].stop)

    @property
    def num_ops(self) -> int:
        """Return the number of choices of head 0; 0 of a Gaussian head."""
        return 0 if self.specs[0].is_gaussian else self.specs[0].size

    def relevant(self, actions: Tensor) -> Tensor:
        """Return [.., H] bool: which heads enter log-probability and entropy for ``actions`` [.., C]."""
        if self.always_relevant:
            return self.relevance[0].expand(*actions.shape[:-1], -1)
        return self.relevance[actions[..., 0].long()]

    def sharpness(self, logits: Tensor) -> Tensor:
        """Return [..], how far the joint log-density may move when means move: the sum of 1 / std of all components."""
        total = torch.zeros(logits.shape[:-2], device=logits.device)
        for index, spec in enumerate(self.specs):
            if spec.is_gaussian:
                _, log_std = gaussian.parameters(logits[..., index, : spec.outputs])
                total = total + (-log_std).exp().sum(-1)
        return total

    def mask_row(self, index: int, masks: Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """Return [.., size]: the legality of head ``index`` given its parents' choices in ``actions``."""
        spec = self.specs[index]
        mask = masks[spec.name]
        if not spec.parents:
            return mask
        lead = actions.shape[:-1]
        row = torch.zeros(lead, dtype=torch.int64, device=actions.device)
        count = 1
        for parent in spec.parents:
            position = self.names.index(parent)
            row = row * self.specs[position].size + actions[..., self.columns[position].start].long()
            count *= self.specs[position].size
        flat = mask.reshape(-1, count, spec.outputs)
        chosen = flat.gather(1, row.reshape(-1, 1, 1).expand(-1, 1, spec.outputs))
        return chosen.reshape(*lead, spec.outputs)

    def mask_rows(self, masks: Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """Return [.., H, N] bool: every head's legality given the executed actions, padding illegal."""
        rows = [
            F.pad(self.mask_row(i, masks, actions), (0, self.width - spec.outputs)) for i, spec in enumerate(self.specs)
        ]
        return torch.stack(rows, dim=-2)

    def choices(self, masks: Mapping[str, Tensor], actions: Tensor, valid: Tensor) -> Choices:
        """Return what ``actions`` [.., C] were chosen among.

        Args:
            masks: legality per head (see ``LockstepEnvs``).
            actions: as executed.
            valid: [..] bool, steps that count.
        """
        rows, relevant = self.mask_rows(masks, actions), self.relevant(actions)
        legal = rows.sum(-1)
        # forced: one legal choice in every relevant head, hence exactly one joint action
        open_steps = (legal > 1) & relevant & valid.unsqueeze(-1)
        unit = torch.where(self.gaussian, 1.0, legal.clamp(min=2).log())
        return Choices(rows, relevant, legal, open_steps, open_steps.any(-1), unit)

    def summary(self, choices: Choices, actions: Tensor, valid: Tensor, entropy: Tensor | None) -> Tensor:
        """Return how actions [T, E, C] were chosen, [K]; of those of several runs [R, T, E, C] each run's, [R, K].

        First the shares of each choice of head 0 (none of a Gaussian head), of forced steps, and of choice 0 among
        unforced ones; then of every head the mean number of legal choices where it is relevant, the number of open
        steps and, where ``entropy`` [.., H] in nats is known, its mean over these in units of ``Choices.unit``.
        """
        steps, of_heads = (-2, -1), (-3, -2)
        counted = valid.unsqueeze(-1)
        relevant, opened = choices.relevant & counted, choices.open_steps.sum(of_heads)
        total, unforced = valid.sum(steps), choices.unforced.sum(steps)
        idle = ((actions[..., 0] == 0) & choices.unforced).sum(steps)
        ops = torch.arange(self.num_ops, device=actions.device)
        divisor = total.clamp(min=1)
        parts = [
            ((actions[..., :1] == ops) & counted).sum(of_heads) / divisor.unsqueeze(-1),
            torch.stack([(total - unforced) / divisor, idle / unforced], dim=-1),
            (choices.legal * relevant).sum(of_heads) / relevant.sum(of_heads).clamp(min=1),
            opened.float(),
        ]
        if entropy is not None:
            parts.append((entropy / choices.unit * choices.open_steps).sum(of_heads) / opened)
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True)
class Choices:
    """What executed actions were chosen among; leading axes as those of the actions.

    Attributes:
        rows: [.., H, N] bool, legal choices given the executed actions.
        relevant: [.., H] bool.
        legal: [.., H], how many choices are legal.
        open_steps: [.., H] bool, the head is relevant in a step that counts and has two or more of them.
        unforced: [..] bool, so it is for some head.
        unit: [.., H], the entropy in nats that counts as 1: ln n of n >= 2 legal choices, 1 for a Gaussian head.
    """

    rows: Tensor
    relevant: Tensor
    legal: Tensor
    open_steps: Tensor
    unforced: Tensor
    unit: Tensor

    def unbind(self) -> list[Choices]:
        """Return those of each of several runs [R, ..]."""
        parts = (self.rows, self.relevant, self.legal, self.open_steps, self.unforced, self.unit)
        return [Choices(*own) for own in zip(*(part.unbind() for part in parts), strict=True)]


@dataclass(frozen=True)
class Floors:
    """Probability floors in force.

    Attributes:
        value: [H] float, f of each head.
        allowed: [H, N] bool, choices that may be floored.
    """

    value: Tensor
    allowed: Tensor

    @classmethod
    def build(
        cls, heads: Heads, floors: Mapping[str, float], never: Mapping[str, Sequence[int]], scale: float
    ) -> Floors | None:
        """Return the floors of a round, or None when all are zero.

        Args:
            heads: layout.
            floors: configured floor per head name.
            never: choices per head name that are never floored.
            scale: share of the configured floors in force, in [0, 1].
        """
        unknown = sorted(set(floors) - set(heads.names))
        if unknown:
            raise ValueError(f"ppo.prob_floor names unknown heads {unknown}; known are {heads.names}")
        real = sorted(spec.name for spec in heads.specs if spec.is_gaussian and floors.get(spec.name, 0.0) > 0)
        if real:
            raise ValueError(f"ppo.prob_floor names {real}, which have no choices; leave them out")
        values = [scale * floors.get(name, 0.0) for name in heads.names]
        if not any(value > 0 for value in values):
            return None
        value = torch.tensor(values)
        allowed = torch.ones(len(heads.specs), heads.width, dtype=torch.bool)
        for name, choices in never.items():
            allowed[heads.names.index(name), list(choices)] = False
        device = heads.relevance.device
        return cls(value.to(device), allowed.to(device))

    def head(self, index: int, size: int) -> Floors:
        """Return the floors of one head, without the head axis."""
        return Floors(self.value[index], self.allowed[index, :size])


def log_probabilities(logits: Tensor, mask: Tensor, floors: Floors | None) -> Tensor:
    """Return log-probabilities [.., N] of masked logits, in FP32 or better; illegal choices get <= -1e8.

    A row without a legal choice gives a uniform row; callers must not use it.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    log_p = F.log_softmax(torch.where(mask, wide, MASKED), dim=-1)
    if floors is None:
        return log_p
    # pi'(a) = (1 - n f) pi(a) + f [a floored], n = floored legal choices, f <= 0.99 / n
    floored = mask & floors.allowed
    count = floored.sum(-1, keepdim=True)
    f = torch.minimum(floors.value.unsqueeze(-1).to(wide.dtype), MAX_FLOOR_MASS / count.clamp(min=1))
    mixed = (1.0 - count * f) * log_p.exp() + f * floored
    return torch.where(mask, mixed.clamp(min=torch.finfo(wide.dtype).tiny).log(), log_p)


def choose(
    heads: Heads,
    logits: Tensor,
    masks: Mapping[str, Tensor],
    noise: Tensor | None,
    floors: Floors | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose one action per row: [E, C] and its joint log-probability [E].

    Args:
        heads: layout.
        logits: [E, H, N].
        masks: legality per head (see ``LockstepEnvs``).
        noise: [E, C], uniforms in [0, ``BELOW_ONE``] of the inverse CDF, and standard normals in the columns of
            Gaussian heads; None = greedy.
        floors: probability floors in force.

    A non-finite distribution gives log-probability NaN and choice 0; every row of ``masks`` must hold a
    legal choice. Both are for the caller to check, once per step and once per round.
    """
    if len(heads.specs) == 1:
        # one head: nothing to slice, and slices cost as much as arithmetic on a few environments
        if heads.specs[0].is_gaussian:
            pick, joint = _draw_head(logits[:, 0], noise, squashed=heads.squashed)
            return pick, joint.squeeze(1)
        own = None if floors is None else floors.head(0, heads.width)
        pick, joint = _choose_head(logits[:, 0], masks[heads.specs[0].name], noise, own)
        return pick, joint.squeeze(1)

    def pick_of(index: int, actions: Tensor) -> tuple[Tensor, Tensor]:
        spec = heads.specs[index]
        own_noise = None if noise is None else noise[:, heads.columns[index]]
        if spec.is_gaussian:
            return _draw_head(logits[:, index, : spec.outputs], own_noise, squashed=heads.squashed)
        own = None if floors is None else floors.head(index, spec.size)
        return _choose_head(logits[:, index, : spec.size], heads.mask_row(index, masks, actions), own_noise, own)

    actions = heads.canonical.expand(logits.shape[0], -1)
    pick, taken = pick_of(0, actions)
    actions, joint = torch.cat([pick.to(actions.dtype), actions[:, heads.columns[0].stop :]], dim=1), taken.squeeze(1)
    relevant = heads.relevant(actions)
    for index in range(1, len(heads.specs)):
        pick, taken = pick_of(index, actions)
        used, columns = relevant[:, index], heads.columns[index]
        actions[:, columns] = torch.where(used.unsqueeze(1), pick.to(actions.dtype), actions[:, columns])
        joint = joint + torch.where(used, taken.squeeze(1), 0.0)
    return actions, joint


def _draw_head(outputs: Tensor, noise: Tensor | None, *, squashed: bool) -> tuple[Tensor, Tensor]:
    """Return one Gaussian head's sample [E, A] and its log-density [E, 1]."""
    mean, log_std = gaussian.parameters(outputs)
    u = gaussian.sample(mean, log_std, noise)
    return u, gaussian.log_density(u, mean, log_std, squashed=squashed).unsqueeze(1)


def _choose_head(logits: Tensor, mask: Tensor, uniforms: Tensor | None, floors: Floors | None) -> tuple[Tensor, Tensor]:
    """Return one head's choice [E, 1] and its log-probability [E, 1]."""
    log_p = log_probabilities(logits, mask, floors)
    if uniforms is None:
        pick = log_p.argmax(-1, keepdim=True)
    else:
        # inverse CDF; a threshold strictly below the last value leaves only choices with p > 0
        cdf = log_p.exp().cumsum(-1)
        pick = (cdf <= uniforms * cdf[:, -1:]).sum(-1, keepdim=True)
    return pick, log_p.gather(1, pick)


@dataclass(frozen=True)
class HeadTerms:
    """Per-head quantities of executed actions, all [.., H]; 0 where a head is irrelevant."""

    log_prob: Tensor
    entropy: Tensor


def evaluate(
    heads: Heads, logits: Tensor, actions: Tensor, rows: Tensor, relevant: Tensor | None, floors: Floors | None
) -> HeadTerms:
    """Return log-probability and raw entropy (nats) of each head for stored actions.

    Args:
        heads: layout.
        logits: [.., H, N].
        actions: [.., C].
        rows: [.., H, N] bool from ``Heads.mask_rows``.
        relevant: [.., H] bool, or None where every head is.
        floors: as in force when the actions were drawn.
    """
    if heads.normal_columns is None:
        taken, entropy = _choice_terms(logits, actions, rows, floors)
    else:
        parts = [_head_terms(heads, index, logits, actions, rows, floors) for index in range(len(heads.specs))]
        taken, entropy = (torch.stack(part, dim=-1) for part in zip(*parts, strict=True))
    if relevant is None:
        return HeadTerms(taken, entropy)
    zero = torch.zeros((), dtype=taken.dtype, device=taken.device)
    return HeadTerms(torch.where(relevant, taken, zero), torch.where(relevant, entropy, zero))


def _head_terms(
    heads: Heads, index: int, logits: Tensor, actions: Tensor, rows: Tensor, floors: Floors | None
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [..] of one head, whatever its kind."""
    spec, columns = heads.specs[index], heads.columns[index]
    outputs = logits[..., index, : spec.outputs]
    if spec.is_gaussian:
        mean, log_std = gaussian.parameters(outputs)
        taken = gaussian.log_density(actions[..., columns], mean, log_std, squashed=heads.squashed)
        return taken, gaussian.entropy(log_std)
    own = None if floors is None else floors.head(index, spec.size)
    return _choice_terms(outputs, actions[..., columns.start].long(), rows[..., index, : spec.size], own)


def _choice_terms(logits: Tensor, actions: Tensor, rows: Tensor, floors: Floors | None) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [..] of choices [..] under logits [.., N]."""
    log_p = log_probabilities(logits, rows, floors)
    taken = log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    # an illegal choice has p = 0 exactly and a finite ln p: no term, no gradient
    return taken, -(log_p.exp() * log_p).sum(-1)
