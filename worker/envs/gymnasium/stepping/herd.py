"""Environments of several runs, of several blocks too, that a simulator steps in one call.

A herd keeps what every environment is at as rows of common arrays, those of one block after those of the other; each
block sees its own part of them. Blocks that come to step together are laid into one herd, and one that steps without
the others takes its rows along; no number of a row depends on its neighbours. Axes: N row (environment), S state,
O observation, L step of an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from worker.envs.gymnasium.stepping.simulators import Simulator

_FIRST_STEPS = 64


@dataclass
class Rows:
    """Where N environments are in their episodes; arrays that are written in place.

    Attributes:
        state: [S, N] of the simulator.
        shown: [N, O] float32, the last observation.
        steps: [N] of the running episode.
        native: [N] its return.
        paid: [N] the same in the rewards as they are paid, rounded to float32.
        summed: [N] what the round has paid.
        idle: [N] bool, its only episode is over.
        actions, rewards: [L, N] of each step of the running episode, for a replay; L is 0 where none is needed.
    """

    state: np.ndarray
    shown: np.ndarray
    steps: np.ndarray
    native: np.ndarray
    paid: np.ndarray
    summed: np.ndarray
    idle: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray

    @classmethod
    def empty(cls, simulator: Simulator, num_rows: int, num_features: int, *, records: bool) -> Rows:
        """Return rows of environments that have not been reset yet."""
        kept = _FIRST_STEPS if records else 0
        return cls(
            state=np.zeros((simulator.num_state, num_rows)),
            shown=np.zeros((num_rows, num_features), dtype=np.float32),
            steps=np.zeros(num_rows, dtype=np.int64),
            native=np.zeros(num_rows),
            paid=np.zeros(num_rows),
            summed=np.zeros(num_rows),
            idle=np.zeros(num_rows, dtype=bool),
            actions=np.zeros((kept, num_rows), dtype=np.float64 if simulator.real else np.int64),
            rewards=np.zeros((kept, num_rows)),
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return copies of several one after the other."""
        longest = max(len(part.actions) for part in parts)
        for part in parts:
            part.grow(longest)
        return cls(
            **{
                f.name: np.concatenate([getattr(part, f.name) for part in parts], axis=0 if f.name == "shown" else -1)
                for f in fields(cls)
            }
        )

    def part(self, rows: slice) -> Rows:
        """Return views of some rows."""
        return Rows(**{f.name: _rows_of(f.name, getattr(self, f.name), rows) for f in fields(self)})

    def grow(self, steps: int) -> None:
        """Make room for episodes of so many steps; views from before do not see it."""
        more = steps - len(self.actions)
        if more > 0:
            self.actions, self.rewards = (np.pad(kept, ((0, more), (0, 0))) for kept in (self.actions, self.rewards))


def _rows_of(name: str, array: np.ndarray, rows: slice) -> np.ndarray:
    part: np.ndarray = array[rows] if name == "shown" else array[..., rows]
    return part


class Herd:
    """Rows that step in one call.

    Args:
        simulator: of all of them.
        rows: of all of them.
        keep: [O] 0 or 1, features that policies see; None for all.
        stop: steps after which an episode ends; None for none.
    """

    def __init__(self, simulator: Simulator, rows: Rows, keep: np.ndarray | None, stop: int | None) -> None:
        self.simulator, self.rows, self._keep, self._stop = simulator, rows, keep, stop
        self._all = np.arange(len(rows.steps))

    def step(self, actions: np.ndarray, acting: np.ndarray | None) -> tuple[np.ndarray, dict[int, bool]]:
        """Step rows that act; return rewards [N] float32, and the rows that ended with whether the task ended them.

        Args:
            actions: [N] as executed, within their space.
            acting: [N] bool, None where all do.
        """
        rows, which = self.rows, self._all if acting is None else np.flatnonzero(acting)
        at: slice | np.ndarray = slice(None) if acting is None else which
        executed = actions[at]
        handed = executed.astype(np.float32) if self.simulator.real else executed
        after, native, terminated = self.simulator.step(rows.state[:, at], handed)
        rows.state[:, at] = after
        self._show(at, after)
        if len(rows.actions):
            done = rows.steps[at]
            rows.actions[done, which], rows.rewards[done, which] = executed, native
        rows.steps[at] += 1
        rows.native[at] += native
        reward = np.zeros(len(rows.steps), dtype=np.float32)
        reward[at] = native
        rows.paid += reward
        rows.summed += reward
        over = terminated if self._stop is None else terminated | (rows.steps[at] >= self._stop)
        return reward, {int(which[i]): bool(terminated[i]) for i in np.flatnonzero(over).tolist()}

    def begin(self, row: int, state: np.ndarray) -> None:
        """Begin an episode in a state [S]."""
        rows = self.rows
        rows.state[:, row] = state
        self._show(slice(row, row + 1), state[:, None])
        rows.steps[row], rows.native[row], rows.paid[row], rows.idle[row] = 0, 0.0, 0.0, False

    def _show(self, at: slice | np.ndarray, state: np.ndarray) -> None:
        shown = self.simulator.observe(state).T.astype(np.float32)
        self.rows.shown[at] = shown if self._keep is None else shown * self._keep
