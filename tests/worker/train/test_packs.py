"""Blocks that are trained step by step together have the numbers that each has alone, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.spec.presets import merge
from tests.worker.train.cases import (
    GYM,
    GYM_ARMS,
    GYM_BOX,
    GYM_LSTM,
    MORPH,
    MORPH_ARMS,
    Arms,
    block,
    digests,
    train,
    trainer,
)
from worker.train.block import BlockTrainer, RoundRecord
from worker.train.cohort_runs import Wave, Whole
from worker.train.rounds import Rounds
from worker.train.runs import TrainedRun

#: Large enough for products that are batched; the update works on eight runs at once, so seven blocks are two portions.
WIDE: dict[str, Any] = {
    "net": {"hidden": 64, "lstm_hidden": 16},
    "env": {"n_envs": 3, "rollout_steps": 16},
    "ppo": {"minibatches": 2, "epochs": 2},
    "budget": {"rounds": 3},
}
LABELS = ("run-A", "run-B")
#: The same with few steps, and a memory for real-numbered actions.
SHORT: dict[str, Any] = {
    "env": {"n_envs": 2, "rollout_steps": 8},
    "ppo": {"minibatches": 2, "epochs": 2},
    "budget": {"rounds": 2},
    "eval": {"every_rounds": 2, "episodes": 1},
}
BOX_LSTM: dict[str, Any] = merge(GYM_BOX, {"net": {"body": "lstm", "lstm_hidden": 12, "hidden": 8}})


def replicate(base: Mapping[str, Any], number: int, arms: Arms = GYM_ARMS) -> BlockTrainer:
    """Return the block of a replicate, not begun."""
    return trainer(block(base, arms, replicate=number, seed=1000 + number, **WIDE))


def together(
    blocks: Mapping[int, BlockTrainer], starts: Mapping[int, int] | None = None, rounds: int = 3
) -> dict[int, list[RoundRecord | Exception]]:
    """Train blocks to their end, each from its own round, and return what each round came to."""
    at = dict(starts or dict.fromkeys(blocks, 0))
    found: dict[int, list[RoundRecord | Exception]] = {number: [] for number in blocks}
    pack = Rounds(stacked=True)
    for number, held in blocks.items():
        held.prepare(at[number])
    while due := [number for number in blocks if at[number] < rounds]:
        for number, outcome in zip(due, pack.train([(blocks[n], at[n]) for n in due]), strict=True):
            found[number].append(outcome)
            at[number] = rounds if isinstance(outcome, Exception) else at[number] + 1
    return found


def told(records: list[RoundRecord | Exception]) -> list[list[str]]:
    kept = [record for record in records if isinstance(record, RoundRecord)]
    return [digests(kept, label) for label in LABELS]


def alone(base: Mapping[str, Any], number: int) -> list[list[str]]:
    name = str(base["preset"]), number
    if name not in _alone:
        _alone[name] = told(list(replicate(base, number).rounds(0)))
    return _alone[name]


#: Trained once for all tests.
_alone: dict[tuple[str, int], list[list[str]]] = {}


@pytest.mark.parametrize(
    ("base", "size"),
    [(GYM, 2), (GYM, 7), (GYM_BOX, 2), (GYM_BOX, 7), (GYM_LSTM, 2), (GYM_LSTM, 7)],
    ids=["choices-2", "choices-7", "real-2", "real-7", "lstm-2", "lstm-7"],
)
def test_a_packed_block_equals_the_block_alone(base: dict[str, Any], size: int) -> None:
    packed = together({number: replicate(base, number) for number in range(size)})
    for number in (0, size - 1):
        assert told(packed[number]) == alone(base, number)


@pytest.mark.parametrize(
    "base", [GYM, GYM_BOX, GYM_LSTM, BOX_LSTM], ids=["choices", "real", "choices-lstm", "real-lstm"]
)
def test_twenty_packed_equal_each_alone_over_a_resume_and_a_divergence(base: dict[str, Any], tmp_path: Path) -> None:
    def fresh(number: int) -> BlockTrainer:
        wide = {"net": {"hidden": 64}} if base in (GYM, GYM_BOX) else {}
        return trainer(block(base, GYM_ARMS, replicate=number, seed=1000 + number, **merge(SHORT, wide)))

    begun = {number: fresh(number) for number in range(20)}
    first = together(begun, rounds=1)
    for number, held in begun.items():
        held.save_checkpoint(tmp_path / str(number), 1)
    resumed = {number: fresh(number) for number in reversed(range(20))}
    starts = {number: held.load_checkpoint(tmp_path / str(number)) for number, held in resumed.items()}
    [broken] = [run for run in resumed[9].runs if run.plan.arm == "B"]
    assert isinstance(broken, TrainedRun)
    broken.learner.flat.data[:] = torch.nan
    second = together(resumed, starts, rounds=2)
    assert broken.diverged == "non-finite policy: step 0: non-finite action distribution"
    for number in (0, 9, 10, 19):
        found = told(first[number] + second[number])
        expected = told(list(fresh(number).rounds(0)))
        if number == 9:
            found, expected = found[:1], expected[:1]
        assert found == expected
    assert len({str(told(records)) for records in second.values()}) == 20


def test_packed_blocks_evaluate_on_hosts_of_their_own() -> None:
    plans = {n: block(MORPH, MORPH_ARMS, replicate=n, seed=n, eval={"every_rounds": 1}) for n in range(2)}
    packed = together({number: trainer(plan) for number, plan in plans.items()}, rounds=2)
    for number, plan in plans.items():
        records = [record for record in packed[number] if isinstance(record, RoundRecord)]
        assert told(packed[number]) == told([*train(block(MORPH, MORPH_ARMS, replicate=number, seed=number))])
        assert [evaluated(record) for record in records] == [evaluated(record) for record in train(plan)]


def evaluated(record: RoundRecord) -> list[dict[str, float]]:
    """Return what an evaluation told of each run."""
    return [
        {name: value for name, value in run.metrics.items() if name.startswith(("eval/", "xeval/"))}
        for run in record.runs
    ]


@pytest.mark.parametrize("base", [GYM, GYM_LSTM], ids=["choices", "choices-lstm"])
def test_runs_of_all_blocks_form_one_stack(base: dict[str, Any]) -> None:
    [group] = Rounds(stacked=True).groups([replicate(base, number) for number in range(3)])
    assert len(group) == 6


def test_nan_in_one_run_reaches_no_other_run_of_its_pack() -> None:
    blocks = {number: replicate(GYM, number) for number in range(3)}
    [broken] = [run for run in blocks[1].runs if run.plan.arm == "B"]
    assert isinstance(broken, TrainedRun)
    broken.learner.flat.data[:] = torch.nan
    packed = together(blocks)
    assert broken.diverged == "non-finite policy: step 0: non-finite action distribution"
    assert told(packed[1])[0] == alone(GYM, 1)[0]
    assert [told(packed[number]) for number in (0, 2)] == [alone(GYM, number) for number in (0, 2)]


def test_equal_arms_of_a_pack_are_bit_equal_and_replicates_are_not() -> None:
    same: Arms = [{"label": "A"}, {"label": "B"}]
    packed = [told(records) for records in together({n: replicate(GYM, n, same) for n in range(2)}).values()]
    assert all(a == b for a, b in packed)
    assert packed[0] != packed[1]


def test_blocks_resume_in_the_middle_beside_others(tmp_path: Path) -> None:
    whole = {number: alone(GYM, number) for number in range(3)}
    begun = {number: replicate(GYM, number) for number in (0, 1)}
    together(begun, rounds=1)
    for number, held in begun.items():
        held.save_checkpoint(tmp_path / str(number), 1)
    resumed = {number: replicate(GYM, number) for number in (2, 1)}
    start = resumed[1].load_checkpoint(tmp_path / "1")
    packed = together(resumed, {2: 0, 1: start})
    assert told(packed[1]) == [found[1:] for found in whole[1]]
    assert told(packed[2]) == whole[2]
    last = replicate(GYM, 0)
    assert told(list(last.rounds(last.load_checkpoint(tmp_path / "0")))) == [found[1:] for found in whole[0]]


def test_a_policy_that_fails_in_the_middle_of_a_round_leaves_its_pack_which_goes_on() -> None:
    def overflowing(held: BlockTrainer) -> TrainedRun:
        """Have a policy push to the left until the pole turns fast enough for a logit beyond float32."""
        [run] = [run for run in held.runs if run.plan.arm == "B"]
        assert isinstance(run, TrainedRun)
        run.learner.flat.data.zero_()
        net = dict(run.learner.net.named_parameters())
        with torch.no_grad():
            net["actor_1.weight"][0, 3], net["actor_1.bias"][0], net["actor_2.weight"][0, 0] = 10.0, -5.0, 10.0
            net["outputs.layers.0.weight"][0, 0], net["outputs.layers.0.bias"][0] = 3.4e38, 3.0e38
        return run

    plain = replicate(GYM, 1)
    fails = overflowing(plain)
    expected = told(list(plain.rounds(0)))
    blocks = {number: replicate(GYM, number) for number in range(3)}
    broken = overflowing(blocks[1])
    packed = together(blocks)
    assert broken.diverged == fails.diverged
    assert "step 0" not in str(broken.diverged)
    assert told(packed[1]) == expected
    assert [told(packed[number]) for number in (0, 2)] == [alone(GYM, number) for number in (0, 2)]


@pytest.mark.parametrize("of_each", [False, True], ids=["whole", "of-each"])
def test_a_block_that_fails_inside_a_round_leaves_its_pack_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, of_each: bool
) -> None:
    blocks = {number: replicate(GYM, number) for number in range(3)}
    called, name, fatal = 0, "collect" if of_each else "settle", 20 if of_each else 4
    method = getattr(blocks[1].envs, name)

    def breaks() -> Any:
        nonlocal called
        called += 1
        if called == fatal:
            raise RuntimeError("the simulator has crashed")
        return method()

    monkeypatch.setattr(blocks[1].envs, name, breaks)
    if of_each:
        monkeypatch.setattr(Whole, "of", lambda wave: wave)
    packed = together(blocks)
    assert str(packed[1][-1]) == "the simulator has crashed"
    assert told(packed[1]) == [found[:1] for found in alone(GYM, 1)]
    assert [told(packed[number]) for number in (0, 2)] == [alone(GYM, number) for number in (0, 2)]


@pytest.mark.parametrize("base", [GYM, GYM_BOX, GYM_LSTM], ids=["choices", "real", "lstm"])
def test_a_pack_of_one_stack_is_stepped_whole(monkeypatch: pytest.MonkeyPatch, base: dict[str, Any]) -> None:
    waves, of = list[Wave | Whole](), Whole.of

    def kept(wave: Wave) -> Wave | Whole:
        waves.append(of(wave))
        return waves[-1]

    monkeypatch.setattr(Whole, "of", kept)
    together({number: replicate(base, number) for number in range(2)}, rounds=1)
    assert [type(wave) for wave in waves] == [Whole]
