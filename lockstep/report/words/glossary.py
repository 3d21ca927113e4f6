"""Plain words for readers who know no statistics: verdicts, flags and terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERDICTS = {
    "WINNER_MEANINGFUL": (
        "good",
        "One arm is better, and even the cautious end of the interval exceeds the smallest effect of interest.",
    ),
    "WINNER": (
        "good",
        "One arm is better. How much is less sure: the advantage may be smaller than the effect of interest.",
    ),
    "WINNER_WITH_HARM": (
        "bad",
        "One arm is better on the primary metric, but it harms a metric that was to be protected.",
    ),
    "DIFFERENT_BUT_NEGLIGIBLE": ("good", "The arms do differ, but by less than what was declared to matter."),
    "EQUIVALENT": (
        "good",
        "Any remaining difference is smaller than what was declared to matter. That is a finding, not a lack of data.",
    ),
    "TREATMENTS_BETTER": (
        "good",
        "At least one of the comparisons that were asked for is settled in favour of an arm; the sentence names each.",
    ),
    "TIE_AT_TOP": (
        "good",
        "No arm beats all others, and among those that may be best there is no meaningful difference.",
    ),
    "IDENTICAL_RUNS": ("good", "Every pair of runs gave exactly the same score."),
    "INCONCLUSIVE": (
        "wait",
        "What was asked is not settled. It does not mean that the arms are equal.",
    ),
    "NO_INFERENCE": (
        "wait",
        "Nothing can be concluded from these runs, or no inference was asked for; the sentence says why.",
    ),
    "INVALID": ("bad", "A condition for a fair comparison was broken, so the scores are not interpreted."),
}

FLAGS = {
    "ALL_FAILED": "every run failed",
    "BIMODAL": "the scores of an arm fall into two groups; consider estimand: learned with a threshold between them",
    "BOUND_AT_ZERO": "scores take few values; the exact test rejects, the interval touches 0",
    "CANCELLED_BY_USER": "some runs were cancelled by a user",
    "DRIVEN_BY_FAILURES": "the verdict would differ if failed runs were left out (they are not)",
    "DRIVER_DIFFERS": "driver or library versions differ between runs",
    "ESTIMANDS_DISAGREE": "the means or the failures contradict what the registered quantity says: do not promote",
    "EXPLORATORY_EXTENSION": "blocks were added after results were seen; they are shown apart",
    "FEW_REPLICATES": "an arm has fewer than two usable replicates",
    "FLOOR_ABOVE_SCORE": "a successful run scored worse than the registered failure score; failed runs stand at the "
    "worst score seen instead",
    "FLOOR_SENSITIVE": "what can be claimed depends on the score given to failed runs",
    "FLOOR_ASSUMED": "no failure score was registered; failed runs stand at the worst score seen",
    "GUARDRAIL_UNPROVEN": "absence of harm is not proven on some guardrail: do not promote automatically",
    "HARDWARE_CONFOUNDED": "arms were not spread evenly over devices",
    "INCOMPLETE": "fewer blocks are complete than planned",
    "LOSS_SENSITIVE": "the verdict would differ if lost runs had gone against the winner",
    "MANY_LOST": "more than 10 % of blocks gave no result and are left out for all arms",
    "NEGATIVE_CORRELATION": "scores of a block run against each other: the unpaired test that stands in for the paired "
    "one rejects too often (6-13 % at a correlation of -.3 to -.9)",
    "NONDETERMINISTIC": "nondeterministic kernels were on",
    "NOT_LEARNED": "no arm that is called alike has improved on its untrained start by as much as matters: train "
    "longer (budget.rounds), unless the start is as good as the task allows",
    "RESUMED_RUNS": "some runs were resumed from a checkpoint",
    "REWARD_SHARED": "the primary metric depends on the reward, which is the same for all arms",
    "SEPARATED": "the arms do not overlap at all; only the exact rank test applies",
    "SKEWED": "with scores as skewed as these the test calls equal means different more often than its level says; the "
    "method below says how often",
    "STOPPED_EARLY": "the experiment was ended before its planned blocks, which no plan foresaw: do not promote",
    "TEST_INTERVAL_DISAGREE": "test and interval of some comparison disagree, because of ties or because its p "
    "adjusted for all comparisons does not reject; it claims nothing",
    "TRAINING_DISAGREES": "training and evaluation name different arms: policies may act otherwise when they are "
    "judged (eval.mode), and on other episodes (eval.max_steps, held-out data); the verdict is on the evaluation",
    "ZERO_VARIANCE": "differences or scores have no spread; t statistics are undefined",
}

_UNLEARNED = "wait", "The arms do not differ, but nor do they from untrained ones: it says nothing of trained policies."


def verdict_words(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """Return the tone (good, wait or bad) and the meaning of a verdict of a report."""
    return _UNLEARNED if "NOT_LEARNED" in verdict["flags"] else VERDICTS[verdict["code"]]


GLOSSARY = (
    (
        "Replicate",
        "one complete training run of one arm with its own random seed. Only replicates count as n.",
    ),
    (
        "Block",
        "one replicate of every arm, sharing random seeds, so that arms are compared under equal luck.",
    ),
    (
        "p",
        "how often a difference at least this large would arise if the arms were interchangeable. It is "
        "not the "
        "chance that an arm is better.",
    ),
    (
        "Interval (CI)",
        "the range of true differences that fit the data. A wide interval means little is known.",
    ),
    (
        "Smallest effect of interest",
        "the difference that was declared, before training, to be worth acting on.",
    ),
    ("Equivalent", "the interval lies wholly within the smallest effect of interest, on both sides of 0."),
    (
        "Failure",
        "a run that diverged. It counts, with a score fixed beforehand; leaving it out would reward fragile arms.",
    ),
    (
        "Lost",
        "a run that ended without an outcome of its training: by worker or device, an error in the code of the "
        "environment or of an arm's reward, the configuration, a user. Its block is left out for all arms.",
    ),
)
