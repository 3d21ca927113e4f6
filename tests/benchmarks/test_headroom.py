"""The headroom table measures what an experiment's own evaluation would report."""

from __future__ import annotations

import torch

from benchmarks.headroom import CASES, Case, plan_of, scores, spec_of, table
from worker.train.block import BlockTrainer

SMALL = {"env": {"task": "digits_tiny", "n_envs": 1, "horizon": 8, "batches_per_step": 1, "val_images": 200}}
CASE = Case(SMALL, {"r0c1": "conv_heavy"}, episodes=2)


def test_scores_equal_the_evaluation_after_a_block_bit_for_bit() -> None:
    resolved = spec_of("small", CASE)
    found = scores(resolved, CASE, 1, torch.device("cpu"), None)
    *_, last = BlockTrainer(plan_of(resolved, 1), torch.device("cpu")).rounds(0)
    for run in last.runs:
        assert found[run.run_id]["accuracy"] == run.metrics["eval/accuracy"]
        assert found[run.run_id]["loss"] == run.metrics["eval/loss"]
    assert len({row["loss"] for row in found.values()}) > 1


def test_table_says_of_a_case_that_was_not_run() -> None:
    assert table({}).count("**not run**") == len(CASES)
