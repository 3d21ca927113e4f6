"""Morphogenesis: the environments of all runs of an assignment, stepped together.

Implements ``worker.envs.base.LockstepEnvs``. A step follows environment.md 6.2: act, tick, train an
epoch (``issue``), validate, judge, reward, observe (``collect``). Hosts are issued in the order A0 B0 A1 B1 ..
and read in one copy. Nothing here reduces over runs. Axes: E environments of a run, S slots, H heads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.spec.tasks import LmShape
from worker.envs.base import Cohort, EpisodeRecord, HeadSpec, Masks, Observation, Seen, StepResult, whole_step
from worker.envs.family import RunEnv
from worker.envs.morph.engine.eager import Job, Outcome, run_jobs
from worker.envs.morph.engine.validate import Measured, ValPlan
from worker.envs.morph.episode import payment, report
from worker.envs.morph.episode.episode import number_or_none
from worker.envs.morph.episode.observe import Observer, View, obs_spec
from worker.envs.morph.episode.payment import Owed
from worker.envs.morph.episode.rehearse import rehearse
from worker.envs.morph.episode.runs import RunState, Turn, UnderWay
from worker.envs.morph.episode.shared_data import Setup, SharedData
from worker.envs.morph.episode.world import World
from worker.envs.morph.life import actions
from worker.envs.morph.life.stages import Op
from worker.envs.morph.network.hosts import Pass
from worker.envs.morph.network.widen import static_shape
from worker.envs.morph.rewards.account import RewardAccount, RewardFunction
from worker.envs.morph.rewards.arrays import Array, Moment
from worker.envs.morph.task.data import Items
from worker.envs.morph.task.streams import Streams
from worker.envs.upload import uploaded

_STATE_SCHEMA = 1


class MorphEnvs:
    """The environments of all runs; see ``worker.envs.base.LockstepEnvs``."""

    resets_each_round: bool = True
    limits: Mapping[str, str] = {}

    def __init__(
        self,
        setup: Setup,
        runs: Sequence[RunEnv],
        rewards: Sequence[RewardFunction],
        xeval: Mapping[str, RewardFunction],
        shared: SharedData | None = None,
    ) -> None:
        if len(runs) != len(rewards):
            raise ValueError(f"{len(runs)} runs need as many rewards, got {len(rewards)}")
        config, device = setup.config, setup.device
        self.setup, self.config, self.device = setup, config, device
        self.num_envs, self.steps_per_round = setup.num_envs, config.horizon
        shared = shared or SharedData.load(setup)
        self.shared, self.data, self.engine, self._draws = shared, shared.data, shared.engine, shared.draws
        self._test = None if setup.phase == "train" else shared.test
        self.streams = Streams(setup.replicate_seed, setup.phase, setup.first_env)
        self._underway: UnderWay | None = None
        self._owed: list[Owed | None] = []
        self._paid: dict[int, Array] = {}
        self.runs = [self._new_run(run, reward, xeval) for run, reward in zip(runs, rewards, strict=True)]
        slots = self.runs[0].world.slots
        self.heads: Sequence[HeadSpec] = actions.head_specs(len(slots))
        self.obs_spec = obs_spec(len(slots))
        self._observer = Observer(config, slots)
        self._step = config.horizon
        self._started = 0.0

    @property
    def test(self) -> Items:
        """Return the test split, in evaluation only; in training reading it raises."""
        return self.data.test if self._test is None else self._test

    def begin_round(self, round_index: int) -> list[tuple[Observation, Masks]]:
        """Start an episode in every environment; its number is the round (ignored in evaluation)."""
        self._owed = []
        self._step, self._started = 0, time.perf_counter()
        jobs: list[Job] = []
        for run in self.runs:
            run.world.reset(round_index, run.spec.static_set if run.spec.policy == "static_matched" else None)
            for reward_account in (run.reward_account, *run.xeval.values()):
                reward_account.open(self.num_envs)
        for env in range(self.num_envs):
            jobs += [self._job(run.world, env, None, last=False) for run in self.runs]
        outcomes = run_jobs(self.engine, jobs, self.data.val)
        for index, outcome in enumerate(outcomes):
            world, env = self.runs[index % len(self.runs)].world, index // len(self.runs)
            world.tracker.record_start(env, outcome.measured)
        return [self._placed(run, self._observe(run, run.world.moment()))[:2] for run in self.runs]

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """Return one cohort: these environments step together."""
        return (Cohort(self, tuple(range(len(self.runs)))),)

    def rehearse(self) -> None:
        """Run what every blueprint in every slot may need, where the engine has to load it."""
        draws = self._draws.take(self.streams.number(0), 0, 0)
        for run in self.runs:
            rehearse(self.engine, self._job(run.world, 0, draws, last=False), run.world.rules, self.data.val)

    def close(self) -> None:
        """Do nothing: hosts are tensors."""

    def step(self, actions: Sequence[Tensor | None]) -> list[StepResult | None]:
        """Execute one action [E, H] int64 per run; None stands for a run that has ended.

        Raises:
            RuntimeError: the round is over, or not begun.
            ValueError: an illegal action.
        """
        return whole_step(self, actions)

    def issue(self, actions: Sequence[Tensor | None]) -> None:
        """Execute the actions of a step and start its training; raises as ``step``."""
        if self._step >= self.config.horizon:
            raise RuntimeError("the round is over; call begin_round first")
        turns = [self._act(run, action) for run, action in zip(self.runs, actions, strict=True)]
        last = self._step + 1 == self.config.horizon
        jobs: list[Job] = []
        places: list[tuple[Turn, int]] = []
        # runs alternate within an environment
        for env in range(self.num_envs):
            takers = [turn for turn in turns if turn is not None and turn.ran[env]]
            if not takers:
                continue
            draws = self._draws.take(self.streams.number(env), takers[0].run.world.episode, self._step)
            jobs += [self._job(turn.run.world, env, draws, last=last) for turn in takers]
            places += [(turn, env) for turn in takers]
        self._underway = UnderWay(turns, places, self.engine.issue(jobs, self.data.val) if jobs else None)
        self._draw_ahead()

    def collect(self) -> list[Seen | None]:
        """Wait for the step that was issued and return what each run sees of it."""
        if self._underway is None:
            raise RuntimeError("no step is under way; call issue first")
        if self._owed:
            raise RuntimeError("the step before is not paid")
        step, self._underway = self._underway, None
        outcomes = [] if step.issued is None else self.engine.collect(step.issued)
        for (turn, env), outcome in zip(step.places, outcomes, strict=True):
            self._record(turn, env, outcome)
        for taken in step.turns:
            if taken is not None:
                taken.run.world.table.end_step(taken.ran)
                taken.run.world.steps += taken.ran
        self._owed, self._paid = [None] * len(self.runs), {}
        seen = [None if turn is None else self._judge(position, turn) for position, turn in enumerate(step.turns)]
        self._step += 1
        return seen

    def pay(self) -> list[Tensor | None]:
        """Pay the step collected last; nothing that a policy sees depends on it."""
        owed, self._owed = self._owed, []
        rewards = [None if item is None else self._pay(position, item) for position, item in enumerate(owed)]
        placed = iter(uploaded([torch.from_numpy(reward) for reward in rewards if reward is not None], self.device))
        return [None if reward is None else next(placed) for reward in rewards]

    def _pay(self, position: int, owed: Owed) -> Array:
        """Return the reward [E] of a run on the host; a second call pays nothing again."""
        if position not in self._paid:
            self._paid[position] = payment.pay(owed)
        return self._paid[position]

    def reward_sums(self, run: int) -> dict[str, Tensor]:
        """Return the sums of the reward components of this round so far, {component: [E]}."""
        return {name: total.to(self.device) for name, total in self.runs[run].reward_account.sums().items()}

    def pop_episodes(self, run: int) -> list[EpisodeRecord]:
        """Return and forget the finished episodes of a run."""
        found, self.runs[run].episodes = self.runs[run].episodes, []
        return found

    def pop_events(self, run: int) -> list[dict[str, Any]]:
        """Return and forget the lifecycle events of a run, by step and by environment within one."""
        world = self.runs[run].world
        found, world.events = world.events, []
        return sorted(found, key=lambda event: (event["step"], event["env_id"]))

    def state_dict(self, run: int) -> dict[str, Any]:
        """Return what a resume at a round border needs: a border is an episode start, so only identity."""
        return {
            "schema": _STATE_SCHEMA,
            "task": self.config.task.name,
            "data": self.data.fingerprint,
            "run": self.runs[run].spec.label,
        }

    def load_state_dict(self, run: int, state: Mapping[str, Any]) -> None:
        """Check that a state is of this run, task and data set; a mismatch raises ValueError."""
        mine = self.state_dict(run)
        differing = sorted(key for key in {*mine, *state} if mine.get(key) != state.get(key))
        if differing:
            key = differing[0]
            raise ValueError(
                f"environment state {key} is {state.get(key)!r}, this run has {mine.get(key)!r}; resume with "
                "the spec and data of the checkpoint"
            )

    def _new_run(self, spec: RunEnv, reward: RewardFunction, xeval: Mapping[str, RewardFunction]) -> RunState:
        if spec.policy == "static_matched" and not spec.static_set:
            raise ValueError(f"run {spec.label}: policy static_matched needs static_set {{slot: blueprint}}")
        shape = static_shape(self.config, spec.static_set) if spec.policy == "static_wide" else None
        world = World(self.config, self.num_envs, self.streams, self.device, self.shared.networks, shape)
        others = {name: RewardAccount(function) for name, function in xeval.items()}
        return RunState(spec, world, RewardAccount(reward), others, world.legality(), world.moment())

    def _act(self, run: RunState, action: Tensor | None) -> Turn | None:
        """Steps 1 to 4: check, preflight, execute, tick."""
        if action is None:
            return None
        world = run.world
        turn = Turn(run, world.running.copy(), [None] * self.num_envs, [Op.WAIT] * self.num_envs)
        rows = action.tolist()
        chosen = {env: actions.decode(rows[env], env, run.legal, self.heads) for env in turn.envs}
        for env, choice in chosen.items():
            turn.chosen[env] = choice
            if not world.governors[env].allows(choice.op):
                world.accounts[env].n_vetoed += 1
            else:
                turn.executed[env] = choice.op
                world.execute(env, choice)
            world.accounts[env].ops[turn.executed[env]] += 1
        world.tick()
        return turn

    def _draw_ahead(self) -> None:
        epoch, episode = self._step + 1, self.runs[0].world.episode
        for env in range(self.num_envs if epoch < self.config.horizon else 0):
            self._draws.ahead(self.streams.number(env), episode, epoch)

    def _job(self, world: World, env: int, draws: Tensor | None, *, last: bool) -> Job:
        return Job(
            network=world.networks[env],
            validator=world.validators[env],
            draws=draws,
            step_plan=world.step_plan(env),
            how=Pass("train", self._dropout(env, world.episode)),
            val_plan=world.val_plan(env, last=last),
        )

    def _dropout(self, env: int, episode: int) -> torch.Generator | None:
        shape = self.config.task.host
        if not isinstance(shape, LmShape) or shape.dropout == 0.0:
            return None
        key = self.streams.key("dropout", env, episode, epoch=self._step)
        return torch.Generator(self.device).manual_seed(key)

    def _record(self, turn: Turn, env: int, outcome: Outcome) -> None:
        """Steps 7 and 8 of one environment: vitals, rollback or snapshot, measurements."""
        world, account = turn.run.world, turn.run.world.accounts[env]
        skipped = world.tracker.record_training(env, outcome.training)
        account.skipped_batches += skipped
        account.train_examples += self.config.batch_size * self.config.batches_per_step
        account.device_seconds += outcome.issue_seconds
        verdict = world.governors[env].check(self._step, outcome.measured.loss, finite=outcome.finite, skipped=skipped)
        turn.verdicts[env] = verdict
        if verdict.panic is not None:
            outcome.measured = self._roll_back(turn, env, outcome.measured)
        elif verdict.healthy and self._snapshot_due(turn.executed[env]):
            world.take_snapshot(env)
        world.tracker.record_main(env, outcome.measured)
        world.tracker.record_grafts(env, outcome.measured, self._step, self.config.velocity_ema)
        account.accuracies.append(outcome.measured.accuracy)
        account.final = outcome.measured

    def _snapshot_due(self, executed: Op) -> bool:
        every = self.config.governor.snapshot_every
        return executed is Op.FOSSILIZE or (self._step + 1) % every == 0

    def _roll_back(self, turn: Turn, env: int, measured: Measured) -> Measured:
        """Restore the last good network and return its validation."""
        world, verdict = turn.run.world, turn.verdicts[env]
        world.event(
            env,
            "governor_rollback",
            reason=verdict.panic,
            loss=number_or_none(measured.loss),
            threshold=number_or_none(verdict.threshold),
            streak=world.governors[env].streak,
            op_before=turn.executed[env].name,
            death_pay=turn.run.reward_account.function.death_pay,
        )
        world.roll_back(env)
        world.accounts[env].rollback = (str(verdict.panic), self._step)
        job = self._job(world, env, None, last=True)
        return run_jobs(self.engine, [job], self.data.val)[0].measured

    def _judge(self, position: int, turn: Turn) -> Seen:
        """Steps 9 and 10 but for pay, which is only owed: episode ends, next observation."""
        run, world, config, post = turn.run, turn.run.world, self.config, turn.run.world.moment()
        truncates = config.horizon_end == "truncated"
        owed = self._owed[position] = payment.owe(turn, post, self._step, config.horizon, truncates=truncates)
        payment.flag_hacking(turn, post)
        for env in turn.envs:
            choice, op = turn.chosen[env], turn.executed[env]
            world.last_op[env], world.as_chosen[env] = int(op), choice is None or choice.op is op
        ends = turn.ran & (owed.rolled_back | owed.is_last)
        world.running &= ~ends
        observation = self._observe(run, post)
        if ends.any():
            self._pay(position, owed)  # an episode's row holds its sum
        self._finish(run, np.flatnonzero(ends).tolist())
        terminated = owed.terminated & owed.valid
        flags = np.stack([terminated, ends & owed.valid & ~terminated, owed.valid])
        view, legal, flags_placed = self._placed(run, observation, torch.from_numpy(flags))
        ended, cut, counts = flags_placed.unbind()
        return Seen(
            observation=view,
            masks=legal,
            terminated=ended,
            truncated=cut,
            valid=counts,
            corrections=owed.corrections(),
        )

    def _placed(self, run: RunState, observation: Observation, *others: Tensor) -> tuple[Any, ...]:
        """Return what a policy sees, and tensors that come with it, on the device; masks go up when they change."""
        tensors = [observation.features, observation.ids, *others]
        if run.placed is None or not run.placed[0].equals(run.legal):
            masks = actions.masks(run.legal, self.heads)
            placed = uploaded([*tensors, *masks.values()], self.device)
            run.placed = run.legal, dict(zip(masks, placed[len(tensors) :], strict=True))
        else:
            placed = uploaded(tensors, self.device)
        features, ids, *rest = placed[: len(tensors)]
        return Observation(features, ids), run.placed[1], *rest

    def _observe(self, run: RunState, moment: Moment) -> Observation:
        """Take the snapshot of s_t that the policy and the next reward read; on the host."""
        world = run.world
        run.legal, run.moment = world.legality(), moment
        view = View(
            table=world.table,
            tracker=world.tracker,
            step=world.steps,
            last_op=world.last_op,
            as_chosen=world.as_chosen,
            streak=np.array([governor.streak for governor in world.governors]),
            host_params=world.host_params,
        )
        return self._observer.build(view)

    def _finish(self, run: RunState, ended: Sequence[int]) -> None:
        """Write the rows of episodes that have ended, at once."""
        tests = self._tested(run.world, ended)
        wall = time.perf_counter() - self._started
        for env, test in zip(ended, tests, strict=True):
            row = report.episode_row(run, env, self.setup.phase, wall, test)
            run.episodes.append(EpisodeRecord(self.streams.number(env), row))

    def _tested(self, world: World, ended: Sequence[int]) -> Sequence[Measured | None]:
        """Return what the final networks of environments are on the test split, in evaluation only."""
        if self._test is None or not ended:
            return [None] * len(ended)
        jobs = []
        for env in ended:
            plan = ValPlan((), fixed=world.val_plan(env, last=True).players)
            jobs.append(Job(world.networks[env], world.validators[env], None, (), Pass("eval"), plan))
        return [outcome.measured for outcome in run_jobs(self.engine, jobs, self._test)]
