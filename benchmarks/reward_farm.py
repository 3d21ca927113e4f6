"""Look for pay without work: 10,000 episodes of searched op sequences in a simulated lifecycle.

    python -m benchmarks.reward_farm [--episodes 10000] [--modes shaped escrow ..] [--out FILE]

Grafts in this world are worth nothing or harm (contribution <= 0) and the host does not move, so whatever
beats waiting is a farm. An evolutionary search over legal op sequences maximises each mode's return among
those that do something; prints the best margin over waiting and exits with 1 if waiting is beaten. With
``--plant`` a farm is built in (pruning a harmful graft pays 3), which the search must find.
Axes: E episode of a generation, S slot.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worker.envs.morph.life.stages import Op, Stage
from worker.envs.morph.rewards import RewardFunction, make_builtin, modes
from worker.envs.morph.rewards.context import RewardContext, SlotState

T, S, GENERATION = 24, 2, 500
HOST, PARAMS = 6418.0, 592.0
GAMMA = 0.995
_OPS = (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE, Op.PRUNE, Op.SET_ALPHA_TARGET)
_NEXT = {Stage.PRUNED: Stage.EMBARGOED, Stage.EMBARGOED: Stage.RESETTING, Stage.RESETTING: Stage.DORMANT}
_ADVANCE = {Stage.GERMINATED: Stage.TRAINING, Stage.TRAINING: Stage.BLENDING, Stage.BLENDING: Stage.HOLDING}
_LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)


class World:
    """E lifecycles of S slots; ``worth`` [E, S] is the contribution of each graft at alpha 1, pp, <= 0."""

    def __init__(self, worth: Tensor) -> None:
        E = worth.shape[0]
        self.worth = worth
        self.stage = torch.full((E, S), int(Stage.DORMANT))
        self.e, self.age = torch.zeros(2, E, S, dtype=torch.int64)
        self.born = torch.full((E, S), -1)
        self.alpha = torch.zeros(E, S)

    def state(self) -> SlotState:
        """Return s_t with everything measured that is on."""
        on = ((self.stage == Stage.BLENDING) | (self.stage == Stage.HOLDING) | (self.stage == Stage.FOSSILIZED)) & (
            self.alpha > 0
        )
        present = on | (self.stage == Stage.GERMINATED) | (self.stage == Stage.TRAINING)
        gain = torch.where(on, self.worth * self.alpha, 0.0)
        accuracy = 50.0 + gain.sum(1)
        fossil = torch.where(self.stage == Stage.FOSSILIZED, gain, 0.0).sum(1)
        E = len(accuracy)
        pairs = torch.full((E, S, S), torch.nan)
        pairs[on.all(1)] = torch.where(torch.eye(S, dtype=torch.bool), torch.nan, 0.0)
        return SlotState(
            stage=self.stage.clone(),
            epochs_in_stage=self.e.clone(),
            age=self.age.clone(),
            alpha=self.alpha.clone(),
            params=torch.where(present, PARAMS, 0.0),
            germinated_at=self.born.clone(),
            contribution=torch.where(on, gain, torch.nan),
            cf=torch.where(on.any(1), gain.sum(1), torch.nan),
            interactions=pairs,
            accuracy=accuracy,
            committed_accuracy=50.0 + fossil,
            loss=2.0 - 0.01 * (accuracy - 50.0),
        )

    def act(self, draw: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Execute a uniform choice among the legal ones by ``draw`` [E] in [0, 1); return ops and slots."""
        legal = self._legal()
        count = legal.sum(1)
        rank = (draw * count).long().clamp(max=count - 1)
        choice = (legal.cumsum(1) <= rank.unsqueeze(1)).sum(1)
        op = torch.tensor([int(Op.WAIT)] + [int(o) for _ in range(S) for o in _OPS])[choice]
        slot = torch.where(choice > 0, (choice - 1) // len(_OPS), 0)
        moved = torch.zeros_like(self.stage, dtype=torch.bool)
        for row in torch.nonzero(op != Op.WAIT).flatten().tolist():
            moved[row, slot[row]] = self._execute(row, int(slot[row]), Op(int(op[row])), t)
        self._pass(moved)
        return op, torch.where(op == Op.WAIT, -1, slot)

    def _legal(self) -> Tensor:
        """Return [E, 1 + 5 S] bool: WAIT, then ``_OPS`` of each slot."""
        stage = self.stage
        live = torch.isin(stage, torch.tensor([int(s) for s in _LIVE]))
        blend = (stage == Stage.BLENDING) | (stage == Stage.HOLDING)
        ops = [
            stage == Stage.DORMANT,
            live & (stage != Stage.HOLDING),
            stage == Stage.HOLDING,
            live & (self.age >= 1),
            blend,
        ]
        return torch.cat([torch.ones(len(stage), 1, dtype=torch.bool), torch.stack(ops, dim=2).flatten(1)], dim=1)

    def _execute(self, row: int, slot: int, op: Op, t: int) -> bool:
        """Return whether the stage changed."""
        at = (row, slot)
        if op is Op.SET_ALPHA_TARGET:
            self.alpha[at] = 0.5 if self.alpha[at] > 0.5 else 1.0
            return False
        if op is Op.GERMINATE:
            self.stage[at], self.born[at], self.age[at] = Stage.GERMINATED, t, 0
        elif op is Op.ADVANCE:
            self.stage[at] = _ADVANCE[Stage(int(self.stage[at]))]
        elif op is Op.FOSSILIZE:
            self.stage[at] = Stage.FOSSILIZED
        else:
            self.stage[at], self.alpha[at], self.age[at], self.born[at] = Stage.PRUNED, 0.0, 0, -1
        self.e[at] = 0
        return True

    def _pass(self, moved: Tensor) -> None:
        before = self.stage.clone()
        for old, new in _NEXT.items():
            self.stage = torch.where((before == old) & ~moved, int(new), self.stage)
        ramps = self.stage == Stage.BLENDING
        self.alpha = torch.where(ramps, (self.alpha + 0.5).clamp(max=1.0), self.alpha)
        self.e = torch.where(moved, 0, self.e + 1)
        live = torch.isin(self.stage, torch.tensor([int(s) for s in (*_LIVE, Stage.FOSSILIZED)]))
        self.age = torch.where(live, self.age + 1, 0)


def returns(reward: RewardFunction, plans: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """Return the undiscounted return [E] of plans [E, T] and whether they did anything [E]."""
    world = World(worth)
    ledgers: dict[str, Tensor] = {}
    E = len(plans)
    total, acted = torch.zeros(E), torch.zeros(E, dtype=torch.bool)
    pre = first = world.state()
    for t in range(T):
        op, slot = world.act(plans[:, t], t)
        post = world.state()
        last = torch.full((E,), t + 1 == T)
        ctx = RewardContext(
            pre=pre,
            post=post,
            op=op,
            target_slot=slot,
            executed_op=op,
            rolled_back=torch.zeros(E, dtype=torch.bool),
            terminated=last,
            is_last=last,
            t=torch.full((E,), t),
            horizon=T,
            host_params=torch.full((E,), HOST),
            initial_accuracy=first.accuracy,
            initial_loss=first.loss,
            ledgers=ledgers,
        )
        result = reward(ctx)
        acted |= op != Op.WAIT
        total, ledgers, pre = total + result.reward, result.ledgers, post
    return total, acted


def search(reward: RewardFunction, episodes: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the best margin over waiting, and the return of waiting, over ``episodes`` episodes."""
    plans = rng.random((GENERATION, T))
    best, idle = -np.inf, 0.0
    for _ in range(max(1, episodes // GENERATION)):
        worth = torch.from_numpy(-rng.exponential(1.0, (GENERATION, S)) * rng.integers(0, 2, (GENERATION, S)))
        waiting, _ = returns(reward, torch.zeros(GENERATION, T), worth.float())
        got, acted = returns(reward, torch.from_numpy(plans).float(), worth.float())
        margin = torch.where(acted, got - waiting, -torch.inf)
        best, idle = max(best, float(margin.max())), float(waiting.mean())
        elite = plans[margin.argsort(descending=True)[: GENERATION // 10].numpy()]
        parents = elite[rng.integers(len(elite), size=(2, GENERATION))]
        plans = np.where(rng.random((GENERATION, T)) < 0.5, parents[0], parents[1])
        # half of the mutations are waiting, which uniform draws seldom choose
        fresh = np.where(rng.random((GENERATION, T)) < 0.5, 0.0, rng.random((GENERATION, T)))
        plans = np.where(rng.random((GENERATION, T)) < 0.1, fresh, plans)
    return best, idle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--modes", nargs="*", default=sorted(modes.MODES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", action="store_true", help="build a farm into every mode that prunes")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    farms, rows = 0, []
    for mode in args.modes:
        constants = {"prune_harmful_pay": 3.0} if args.plant else {}
        reward = make_builtin(mode, constants, gamma=GAMMA, task="digits_tiny")
        best, idle = search(reward, args.episodes, np.random.default_rng(args.seed))
        farms += best > 1e-4
        verdict = "FARM" if best > 1e-4 else "ok"
        print(f"{verdict:4} {mode:11} best margin over waiting {best:+.4f} (waiting {idle:.3f})", flush=True)
        rows.append({"mode": mode, "best_margin": best, "waiting": idle, "farm": best > 1e-4})
    if args.out is not None:
        setting = {"episodes": args.episodes, "seed": args.seed, "planted": args.plant, "steps": T, "slots": S}
        args.out.write_text(json.dumps({**setting, "modes": rows}, indent=1) + "\n")
    return min(farms, 1)


if __name__ == "__main__":
    sys.exit(main())
