"""Batched simulators behind the lockstep protocol: one call steps all environments of a run (tasks.md 3).

A package registers a ``gymnasium.vector.VectorEnv``, or a class of the same interface whose observations are tensors of
one device; then what policies see never leaves it. All three autoreset modes are understood: with ``DISABLED`` each
episode has its own keyed seed where the simulator takes a seed for each environment; with ``NEXT_STEP`` the step that
only resets is no transition and counts nowhere; with ``SAME_STEP`` the true final observation is read from the infos.
Axes: E environment, O observation, C columns of a row of actions, P bytes of all images.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from torch import Tensor

from lockstep.keys import derive
from lockstep.spec.environments.gymnasium import CAPPED, EVAL_MAX_STEPS, RANDOM_NUMBERS, RESUMED_EPISODES, TIME_LIMIT
from worker.envs.base import HeadSpec, Masks, Observation, StepResult
from worker.envs.family import Order
from worker.envs.faults import RAISED, BadValue, EnvironmentFault, building, last_line, playing, unfit
from worker.envs.gymnasium.actions import ActionDoor
from worker.envs.gymnasium.build import named
from worker.envs.gymnasium.door import LARGEST, reset_values, step_values
from worker.envs.gymnasium.ledger import Ledger
from worker.envs.gymnasium.observations import ObservationDoor
from worker.envs.gymnasium.rewards import GymReward, Transition
from worker.envs.gymnasium.stepping.stepped import SEED_BITS, Stepped

_SIM = "sim/"


def is_batched(factory: Any) -> bool:
    """Return whether a registered factory makes batched simulators: a ``VectorEnv``, or marked ``is_batched``."""
    is_vector = isinstance(factory, type) and issubclass(factory, VectorEnv)
    return is_vector or bool(getattr(factory, "is_batched", False))


class VectorEnvs(Stepped):
    """E environments of each of K runs, in one simulator a run.

    Args:
        order: what to build; its ``device`` is where the simulator may compute.
        xeval: reward functions under which episodes are scored too.
        factory: takes ``num_envs``, ``device`` where it names it, and ``env.kwargs``.
        phase: ``train`` (carries on over rounds) or ``eval`` (one episode each, then idle).

    Attributes:
        device: where observations lie.
        mode: when the simulator resets what has ended.
        takes_seeds: whether a reset takes a seed for each environment.
        keeps_state: whether the simulator gives its state, so that episodes go on where a block is resumed.
        entry: layout of observations.

    Raises:
        ValueError: the simulator cannot be built, or has a space or a mode that is not supported.
    """

    def __init__(
        self, order: Order, xeval: Mapping[str, GymReward], *, factory: Callable[..., Any], phase: str
    ) -> None:
        super().__init__(
            [
                Ledger(reward, xeval, order.num_envs, run.label)
                for reward, run in zip(order.rewards, order.runs, strict=True)
            ],
            order.num_envs,
            order.replicate_seed,
            phase,
        )
        self._alive = order.alive
        self._bounds, self._name = [run.action_bounds for run in order.runs], str(order.config["env"]["id"])
        self._sims: list[Any] = []
        try:
            self._build(order.config, factory, order.device)
        except BaseException:
            self.close()
            raise

    def _build(self, config: Mapping[str, Any], factory: Callable[..., Any], device: torch.device) -> None:
        section, num_runs, E = config["env"], len(self._ledgers), self.num_envs
        for name in ("wrappers", "max_episode_steps", "processes"):
            if section.get(name):
                told = f"env.id {self._name!r} is a batched simulator, which steps all its environments itself"
                remedy = "give it through env.kwargs" if name == "max_episode_steps" else "leave it out"
                raise ValueError(f"env.{name}: {told}; {remedy}")
        with building(named(section)):
            takes = inspect.signature(factory).parameters
            placed = {"device": device} if "device" in takes else {}
            for _ in range(num_runs):
                self._sims.append(factory(num_envs=E, **placed, **(section.get("kwargs") or {})))
            first = self._sims[0]
            self._seen, acted = first.single_observation_space, first.single_action_space
        self.mode = _autoreset(first, self._name)
        self.keeps_state = hasattr(first, "get_state") and hasattr(first, "set_state")
        if config["net"]["body"] == "lstm" and not self.keeps_state and self._phase == "train":
            told = "a recurrent policy is resumed in the middle of episodes, which takes a simulator with"
            raise ValueError(f"net.body lstm: {told} get_state and set_state")
        self._door, self.entry = ActionDoor(acted), ObservationDoor(self._seen)
        self.heads: Sequence[HeadSpec] = self._door.heads
        for bounds in dict.fromkeys(self._bounds):
            self._door.check(bounds)
        self._acted, self._batched = acted, batch_space(self._seen, E)
        self.obs_spec = self.entry.spec
        self.resets_each_round = self._phase == "eval"
        self.steps_per_round = int(section["rollout_steps"])
        if self.resets_each_round:
            self.steps_per_round = (config.get("eval") or {}).get("max_steps") or EVAL_MAX_STEPS
        self._is_plain = isinstance(self._seen, spaces.Box) and not self.obs_spec.images
        self.takes_seeds, shown = self._probe(first)
        self._is_tensor = isinstance(shown, Tensor)
        self.device = shown.device if self._is_tensor else torch.device("cpu")
        if self._is_tensor and not self._is_plain:
            raise ValueError(f"env.id={self._name!r}: a simulator of tensors observes one Box of numbers")
        limits = {
            RANDOM_NUMBERS: None if self.takes_seeds else "hold for each batch: the simulator takes one seed for all",
            RESUMED_EPISODES: None if self.keeps_state else "began anew: the simulator does not give its state",
        }
        self.limits = {name: text for name, text in limits.items() if text is not None}
        self._lay(num_runs)

    def _lay(self, num_runs: int) -> None:
        E, O, dev = self.num_envs, self.obs_spec.num_features, self.device  # noqa: E741 - axis letters
        num_pixels = sum(int(np.prod(image)) for image in self.obs_spec.images)
        self._obs = [torch.zeros(E, O, device=dev) for _ in range(num_runs)]
        self._pixels = [torch.zeros(E, num_pixels, dtype=torch.uint8) for _ in range(num_runs)]
        self._masks: Masks = {h.name: torch.ones(E, h.outputs, dtype=torch.bool, device=dev) for h in self.heads}
        self._no_ids = torch.zeros(E, 0, dtype=torch.int64, device=dev)
        self._episode = np.full((num_runs, E), -1)
        self._seeds = np.zeros((num_runs, E), dtype=np.int64)
        self._steps = np.zeros((num_runs, E), dtype=np.int64)
        self._native = np.zeros((num_runs, E))
        self._idle = np.zeros((num_runs, E), dtype=bool)  # its next step is none: over, or it only resets
        self._started = [[""] * E for _ in range(num_runs)]

    def _probe(self, sim: Any) -> tuple[bool, Any]:
        """Return whether a reset takes a seed for each environment, and what a reset shows.

        It does where equal seeds show the same and others do not.
        """
        seeds = [derive(self._seed, "warmup", env=i) & SEED_BITS for i in range(self.num_envs)]
        other = [(seed + 1) & SEED_BITS for seed in seeds]
        with playing(f"environment {self._name!r} in reset"):
            plain = reset_values(sim.reset(seed=seeds[0]))[0]
        try:
            shown = [_flat(reset_values(sim.reset(seed=list(given)))[0]) for given in (seeds, other, seeds)]
        except RAISED:  # it takes one seed for all
            return False, plain
        return bool(np.array_equal(shown[0], shown[2]) and not np.array_equal(shown[0], shown[1])), plain

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start a round: reset in evaluation and before the first round, else carry on."""
        self._round = round_index
        everyone = list(range(self.num_envs))
        for run in range(len(self._sims)):
            self._ledgers[run].begin_round()
            if self.resets_each_round:
                self._episode[run] = -1
            if (self._episode[run] < 0).all():
                self._begin(run, everyone)
                self._take(run, self._reset_sim(run, everyone))
                self._idle[run] = False
        return [(self._observation(run), self._masks) for run in range(len(self._sims))]

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return episode numbers, and the simulator's own state and all running sums where it gives its state."""
        state: dict[str, Any] = {"episode": torch.from_numpy(self._episode[run].copy())}
        if not self.keeps_state:
            return state
        with playing(f"environment {self._name!r} in get_state"):
            state |= {f"{_SIM}{name}": torch.as_tensor(value) for name, value in self._sims[run].get_state().items()}
        for name, values in self._sums(run).items():
            state[name] = torch.from_numpy(values.copy())
        return state | {"observation": self._obs[run].clone(), "pixels": self._pixels[run].clone()}

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; a simulator that gives no state begins new episodes, which is told in the log."""
        self._episode[run] = state["episode"].cpu().numpy()
        if not self.keeps_state:
            told = "gives no state (get_state, set_state): every episode begins anew where the block is resumed"
            sys.stderr.write(f"environment {self._name!r} {told}\n")
            everyone = list(range(self.num_envs))
            self._begin(run, everyone)
            self._take(run, self._reset_sim(run, everyone))
            return
        own = {name.removeprefix(_SIM): value for name, value in state.items() if name.startswith(_SIM)}
        with playing(f"environment {self._name!r} in set_state"):
            self._sims[run].set_state(own)
        for name, values in self._sums(run).items():
            values[:] = state[name].cpu().numpy()
        self._obs[run].copy_(state["observation"])
        self._pixels[run].copy_(state["pixels"])
        now = datetime.now(UTC).isoformat()
        self._started[run] = [now] * self.num_envs

    def close(self) -> None:
        """Close every simulator; one that fails to close keeps none of the others open."""
        while self._sims:
            try:
                self._sims.pop().close()
            except RAISED as error:
                sys.stderr.write(f"environment {self._name!r} raised in close: {last_line(error)}\n")

    def _sums(self, run: int) -> dict[str, np.ndarray]:
        """Return what runs on over a border, by the name under which a checkpoint holds it."""
        own = {"steps": self._steps[run], "native": self._native[run], "seeds": self._seeds[run]}
        return own | {"idle": self._idle[run], "paid": self._ledgers[run].paid}

    def _step_run(self, run: int, actions: Tensor) -> StepResult:
        E, ledger, idle = self.num_envs, self._ledgers[run], self._idle[run]
        valid = ~idle
        before = None if ledger.is_native else self._obs[run].cpu().clone()
        executed = self._door.executed(actions.cpu(), self._bounds[run])
        began = time.perf_counter()
        with playing(f"environment {self._name!r} in step"):
            shown, paid, ends, cuts, info = step_values(self._sims[run].step(self._handed(executed)))
            native, ends, cuts = self._judged(paid, ends, cuts, valid)
        self._steps[run] += valid
        self._native[run] += native
        terminated, truncated = ends & valid, cuts & valid & ~ends
        capped = valid & ~terminated & ~truncated & (self._steps[run] >= self.steps_per_round)
        capped &= self.resets_each_round
        finished = terminated | truncated | capped
        self._take(run, shown)
        final = self._final(run, info, terminated | truncated) if finished.any() else None
        reward = torch.from_numpy(native.astype(np.float32))
        if before is not None:
            stepping = time.perf_counter() - began
            after = (self._observation(run) if final is None else final).features.cpu()
            flags = torch.from_numpy(terminated), torch.from_numpy(truncated | capped)
            step = Transition(before, executed, reward, after, *flags, _scalars(info, E))
            reward = ledger.score(step, valid, self._episode[run], stepping)
        ledger.add(native.astype(np.float32), reward.numpy())
        self._end(run, finished, {"done": terminated, TIME_LIMIT: truncated, CAPPED: capped}, info)
        self._alive()
        # the step that only resets ends what memory a policy has of the episode before
        ended = torch.from_numpy(terminated | (~valid & (not self.resets_each_round)))
        return StepResult(
            observation=self._observation(run),
            masks=self._masks,
            reward=reward.to(self.device),
            terminated=ended.to(self.device),
            truncated=torch.from_numpy(truncated | capped).to(self.device),
            valid=torch.from_numpy(valid).to(self.device),
            final_observation=None if self.resets_each_round else final,
        )

    def _judged(self, paid: Any, ends: Any, cuts: Any, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rewards [E] float64, 0 where nothing was played, and both flags [E]; one copy from a device."""
        if all(isinstance(part, Tensor) for part in (paid, ends, cuts)):
            paid, ends, cuts = torch.stack([part.double() for part in (paid, ends, cuts)]).cpu().numpy()
        ended = _column(ends, "terminated", self.num_envs).astype(bool)
        cut = _column(cuts, "truncated", self.num_envs).astype(bool)
        native = np.where(valid, _column(paid, "rewards", self.num_envs).astype(np.float64), 0.0)
        fits = np.abs(native) <= LARGEST
        if not fits.all():
            bad = int((~fits).argmax())
            raise self._fault(bad, f"the reward {native[bad]:g}, {unfit(native[bad])}")
        return native, ended, cut

    def _final(self, run: int, info: Mapping[str, Any], ended: np.ndarray) -> Observation:
        """Return the true observations after a step in which the simulator ended some episodes."""
        now = self._observation(run)
        if self.mode != AutoresetMode.SAME_STEP:
            pixels = None if now.pixels is None else now.pixels.clone()
            return Observation(now.features.clone(), now.ids, pixels)
        with playing(f"environment {self._name!r}: infos['final_obs']"):
            kept = self._obs[run].clone(), self._pixels[run].clone()
            last, exact = info["final_obs"], None
            if self._is_plain and isinstance(last, Tensor):
                rows, exact = self._like(ended), last.reshape(self.num_envs, -1)
                self._obs[run][rows] = exact[rows].to(torch.float32)
                ended = np.zeros_like(ended)
            for index in np.flatnonzero(ended):
                value = last[index]
                # gymnasium collects them as objects
                is_array = isinstance(value, np.ndarray) and value.dtype == object
                self._write(run, int(index), np.array(value.tolist()) if is_array else value)
            self._check_finite(run, exact)
            final = Observation(self._obs[run], now.ids, self._pixels[run] if self.obs_spec.images else None)
            self._obs[run], self._pixels[run] = kept
        return final

    def _end(self, run: int, finished: np.ndarray, outcomes: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Record finished episodes and begin the next ones."""
        indices = np.flatnonzero(finished).tolist()
        if self.mode == AutoresetMode.NEXT_STEP and not self.resets_each_round:
            self._idle[run] = finished
        if not indices:
            return
        for index in indices:
            self._record(run, index, next(name for name, which in outcomes.items() if which[index]), info)
        if self.resets_each_round:
            self._idle[run] |= finished
        else:
            self._begin(run, indices)
        if self.mode == AutoresetMode.DISABLED:
            shown = self._reset_sim(run, indices)
            if not self.resets_each_round:
                self._take(run, shown)

    def _begin(self, run: int, indices: Sequence[int]) -> None:
        """Number the next episodes of some environments and clear their sums."""
        now = datetime.now(UTC).isoformat()
        for index in indices:
            self._episode[run, index] += 1
            self._steps[run, index], self._native[run, index] = 0, 0.0
            self._ledgers[run].begin_episode(index)
            self._started[run][index] = now

    def _reset_sim(self, run: int, indices: Sequence[int]) -> Any:
        """Reset some environments under their keys, or all under one where the simulator takes no more."""
        everyone = len(indices) == self.num_envs
        seed: Any = None
        if self.takes_seeds:
            seed = [None] * self.num_envs
            for index in indices:
                seed[index] = self._reset_seed(index, int(self._episode[run, index]))
        elif everyone:
            seed = self._reset_seed(0, int(self._episode[run, 0]))
        for index in indices if seed is not None else ():
            self._seeds[run, index] = seed[index] if self.takes_seeds else seed
        options = {}
        if not everyone:
            mask = np.zeros(self.num_envs, dtype=bool)
            mask[list(indices)] = True
            options = {"options": {"reset_mask": self._like(mask)}}
        with playing(f"environment {self._name!r} in reset"):
            return reset_values(self._sims[run].reset(seed=seed, **options))[0]

    def _like(self, mask: np.ndarray) -> Any:
        return torch.from_numpy(mask).to(self.device) if self._is_tensor else mask

    def _handed(self, executed: Tensor) -> Any:
        """Return actions [E, C] as the simulator takes them: one batch of its action space."""
        space = self._acted
        if isinstance(space, spaces.Box | spaces.Discrete):
            start = int(space.start) if isinstance(space, spaces.Discrete) else 0
            batch: Any = (executed.numpy() + start).astype(space.dtype).reshape(self.num_envs, *(space.shape or ()))
        else:
            rows = [self._door.native(row) for row in executed.tolist()]
            batch = concatenate(space, rows, cast("Any", create_empty_array(space, self.num_envs)))
        return torch.from_numpy(batch).to(self.device) if self._is_tensor else batch

    def _take(self, run: int, shown: Any) -> None:
        """Keep what the simulator shows; what its space forbids, or is not finite, is the environment's fault."""
        exact = None
        if self._is_plain:
            batch = shown if isinstance(shown, Tensor) else np.asarray(shown)
            wanted = (self.num_envs, *(self._seen.shape or ()))
            if tuple(batch.shape) != wanted:
                raise EnvironmentFault(
                    f"environment {self._name!r} returned observations of the shape {tuple(batch.shape)}, not {wanted}"
                )
            numbers = batch if isinstance(batch, Tensor) else torch.from_numpy(np.ascontiguousarray(batch))
            exact = numbers.reshape(self.num_envs, -1)
            self._obs[run] = exact.to(torch.float32, copy=True)
        else:
            with playing(f"environment {self._name!r}: its observations"):
                for index, row in enumerate(iterate(self._batched, shown)):
                    self._write(run, index, row)
        self._check_finite(run, exact)

    def _check_finite(self, run: int, exact: Tensor | None) -> None:
        """Refuse observations that are not finite; ``exact`` [E, O] are they before they were rounded to float32."""
        finite = torch.isfinite(self._obs[run])
        if not bool(finite.all()):
            index, at = (int(place) for place in (~finite).nonzero()[0])
            value = float((self._obs[run] if exact is None else exact)[index, at])
            raise self._fault(index, self.entry.fault_at(at, value))

    def _fault(self, index: int, returned: object) -> EnvironmentFault:
        return EnvironmentFault(f"environment {self._name!r} (number {index}) returned {returned}")

    def _write(self, run: int, index: int, value: Any) -> None:
        if isinstance(value, Tensor):
            self._obs[run][index] = value.reshape(-1).to(torch.float32)
            return
        try:
            self.entry.write(value, self._obs[run][index].numpy(), self._pixels[run][index].numpy())
        except BadValue as error:
            raise self._fault(index, error) from error

    def _record(self, run: int, index: int, outcome: str, info: Mapping[str, Any]) -> None:
        told = {
            "episode_idx": int(self._episode[run, index]),
            "host_seed_key": int(self._seeds[run, index]),
            "env_steps": int(self._steps[run, index]),
            "outcome": outcome,
            "started_at": self._started[run][index],
        }
        self._tell(run, index, float(self._native[run, index]), told, _success(info, index))

    def _observation(self, run: int) -> Observation:
        return Observation(self._obs[run], self._no_ids, self._pixels[run] if self.obs_spec.images else None)


def _autoreset(sim: Any, name: str) -> AutoresetMode:
    told = (getattr(sim, "metadata", None) or {}).get("autoreset_mode")
    try:
        return told if isinstance(told, AutoresetMode) else AutoresetMode(told)
    except ValueError:
        names = ", ".join(mode.name for mode in AutoresetMode)
        raise ValueError(
            f"env.id={name!r}: its metadata['autoreset_mode'] is {told!r}; it must be one of {names} of "
            "gymnasium.vector.AutoresetMode"
        ) from None


def _column(values: Any, name: str, num_envs: int) -> np.ndarray:
    column = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    if column.shape != (num_envs,):
        raise BadValue(f"{name} of the shape {column.shape}, not ({num_envs},)")
    return column


def _flat(shown: Any) -> np.ndarray:
    parts = list(shown.values()) if isinstance(shown, Mapping) else shown if isinstance(shown, tuple) else [shown]
    arrays = [np.asarray(part.cpu() if isinstance(part, Tensor) else part) for part in parts]
    return np.concatenate([array.reshape(-1).astype(np.float64) for array in arrays])


def _scalars(info: Mapping[str, Any], num_envs: int) -> dict[str, Tensor]:
    """Return the numbers in the infos, [E] float32 by name; NaN where one is absent."""
    found = {}
    for name, values in info.items():
        column = np.asarray(values.cpu()) if isinstance(values, Tensor) else values
        if name.startswith("_") or not isinstance(column, np.ndarray) or column.shape != (num_envs,):
            continue
        if column.dtype.kind in "biuf":
            has = np.asarray(info.get(f"_{name}", np.ones(num_envs, dtype=bool)), dtype=bool)
            found[name] = torch.from_numpy(np.where(has, column.astype(np.float32), np.float32(np.nan)))
    return found


def _success(info: Mapping[str, Any], index: int) -> bool | None:
    """Return what the last info of an episode says of ``is_success``; None where it says nothing."""
    for told in (info.get("final_info"), info):
        if isinstance(told, Mapping) and "is_success" in told:
            has = told.get("_is_success")
            if has is None or bool(has[index]):
                return bool(told["is_success"][index])
    return None
