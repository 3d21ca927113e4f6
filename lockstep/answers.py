"""What the client returns: documents of the API with typed properties, curves and scores as arrays, shown in notebooks.

A document is a ``dict`` as the server sent it, so that later fields are there too. NaN and infinities are data.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep.nonfinite import value_of
from lockstep.status import TERMINAL_EXPERIMENT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray: TypeAlias = npt.NDArray[np.float64]
    IntArray: TypeAlias = npt.NDArray[np.int64]


class MissingPackage(RuntimeError):  # noqa: N818 - says what is missing
    """A package that this asks for is not installed; the message names it."""


class _Document(dict[str, Any]):
    """A JSON object of the API."""


class Verdict(_Document):
    """What a report concludes, with the pair of arms it rests on."""

    @property
    def code(self) -> str:
        """The verdict's code, such as ``WINNER`` or ``INCONCLUSIVE``."""
        return str(self["code"])

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return str(self["sentence"])

    @property
    def winner(self) -> str | None:
        """Label of the arm that won, None without one."""
        return None if self["winner"] is None else str(self["winner"])

    @property
    def is_settled(self) -> bool:
        """Whether more replicates would change nothing."""
        return bool(self["settled"])

    @property
    def estimate(self) -> float | None:
        """Estimated difference of the pair, in the unit of the metric; None without a pair."""
        pair = self.get("pair")
        return None if not pair or pair["estimate"] is None else float(pair["estimate"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the difference; an open end is infinite."""
        ends = (self.get("pair") or {}).get("ci_superiority")
        if not ends:
            return None
        return (-math.inf if ends[0] is None else float(ends[0]), math.inf if ends[1] is None else float(ends[1]))

    def _repr_html_(self) -> str:
        return f"<div><b>{escape(self.code)}</b> {escape(self.sentence)}{self._forest()}</div>"

    def _forest(self) -> str:
        """Return estimate and interval beside zero and the smallest effect of interest, as SVG."""
        pair, estimate, interval = self.get("pair"), self.estimate, self.interval
        if not pair or estimate is None or interval is None:
            return ""
        sesoi = self.get("sesoi") or 0.0
        ends = [end for end in interval if math.isfinite(end)]
        reach = 1.1 * max(abs(value) for value in (*ends, estimate, sesoi, 1e-9))
        low, high, at, left, right = (
            round(180 + 170 * max(-1.0, min(1.0, value / reach)), 1) for value in (*interval, estimate, -sesoi, sesoi)
        )
        level = "" if pair.get("alpha_used") is None else f"{100 * (1 - pair['alpha_used']):.3g} % CI "
        bounds = f"[{level}{interval[0]:.4g}, {interval[1]:.4g}]"
        label = f"{pair['a']} - {pair['b']}: {estimate:.4g} {bounds} {self.get('unit', '')}"
        return (
            f'<svg viewBox="0 0 360 40" width="360" height="40" role="img" aria-label="{escape(label)}">'
            f'<rect x="{left}" y="4" width="{round(right - left, 1)}" height="20" fill="#2356b8" opacity="0.12"/>'
            '<line x1="180" x2="180" y1="2" y2="26" stroke="#888"/>'
            f'<line x1="{low}" x2="{high}" y1="14" y2="14" stroke="#2356b8" stroke-width="2"/>'
            f'<circle cx="{at}" cy="14" r="4" fill="#2356b8"/>'
            f'<text x="180" y="38" text-anchor="middle" font-size="11" fill="currentColor">{escape(label)}</text></svg>'
        )


class Experiment(_Document):
    """An experiment: what it asks, how far it is, what it has found."""

    @property
    def id(self) -> str:
        """Its id."""
        return str(self["id"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self["name"])

    @property
    def status(self) -> str:
        """Its state, such as ``running`` or ``succeeded``."""
        return str(self["status"])

    @property
    def is_over(self) -> bool:
        """Whether it has ended and its report, if it registered an analysis, is written."""
        return self.status in TERMINAL_EXPERIMENT and self["finished_at"] is not None

    @property
    def arms(self) -> list[str]:
        """Labels of its arms, in the order of the specification."""
        return [arm if isinstance(arm, str) else str(arm["label"]) for arm in self["arms"]]

    @property
    def fraction(self) -> float:
        """Share of its rounds that are done, 0 to 1."""
        return float(self["progress"]["fraction"])

    @property
    def verdict(self) -> Verdict | None:
        """What its newest report concludes, None before there is one."""
        return Verdict(self["answer"]) if self.get("answer") else None

    def _repr_html_(self) -> str:
        verdict, why = self.verdict, self.get("why_waiting")
        told = verdict._repr_html_() if verdict is not None else escape(why["text"]) if why else "no verdict yet"
        rows = (("state", f"{self.status}, {100 * self.fraction:.0f} % of the rounds"), ("arms", ", ".join(self.arms)))
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows)
        head = f"<b>{escape(self.name)}</b> <code>{escape(self.id)}</code>"
        return f"<div>{head}<table>{cells}</table>{told}</div>"


class Submitted(_Document):
    """A stored experiment and how to follow it."""

    @property
    def id(self) -> str:
        """Id of the experiment."""
        return str(self["id"])

    @property
    def status(self) -> str:
        """Its state when it was stored, ``queued``."""
        return str(self["status"])

    @property
    def warnings(self) -> list[Any]:
        """What the server has to say about the specification."""
        return list(self["warnings"])


class Plan(_Document):
    """What a specification would run."""

    @property
    def num_blocks(self) -> int:
        """Blocks, one for each replicate."""
        return int(self["num_blocks"])

    @property
    def num_runs(self) -> int:
        """Runs: arms times replicates."""
        return int(self["num_runs"])

    @property
    def spec_hash(self) -> str:
        """Hash of the resolved specification."""
        return str(self["spec_hash"])


class Run(_Document):
    """One arm in one replicate."""

    @property
    def id(self) -> str:
        """Its id."""
        return str(self["id"])

    @property
    def arm(self) -> str:
        """Label of its arm."""
        return str(self["group_id"])

    @property
    def replicate(self) -> int:
        """Number of its replicate, from 0."""
        return int(self["replicate"])

    @property
    def status(self) -> str:
        """Its state."""
        return str(self["status"])


class Report(_Document):
    """The report of an experiment."""

    @property
    def verdict(self) -> Verdict:
        """What it concludes; ``Experiment.verdict`` has the interval too."""
        return Verdict(self["verdict"])

    def _repr_html_(self) -> str:
        return f"<div><b>{escape(self['name'])}</b> {self.verdict._repr_html_()}</div>"


@dataclass(frozen=True)
class Scores:
    """The score of every run that a report judges.

    Attributes:
        metric: what was measured.
        arms: labels, A of them.
        replicates: numbers, shape [R].
        values: shape [R, A]; NaN where a run failed or was lost.
        failed: shape [R, A]; whether a run has diverged, so that it counts as a failure.
    """

    metric: str
    arms: tuple[str, ...]
    replicates: IntArray
    values: FloatArray
    failed: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Scores:
        """Read the scores of a report."""
        import numpy as np

        registration = report["registration"]
        arms = tuple(str(arm["label"]) for arm in registration["arms"])
        rows = report["scores"]
        replicates = sorted({int(row["replicate"]) for row in rows})
        values = np.full((len(replicates), len(arms)), np.nan)
        failed = np.zeros(values.shape, dtype=bool)
        for row in rows:
            at = replicates.index(row["replicate"]), arms.index(row["arm"])
            failed[at] = row["status"] == "failed"
            if row["value"] is not None and row["status"] == "ok":
                values[at] = row["value"]
        metric = str(registration["analysis"]["primary"]["metric"])
        return cls(metric, arms, np.asarray(replicates, dtype=np.int64), values, failed)

    def __getitem__(self, arm: str) -> FloatArray:
        """Return the scores of an arm by replicate, shape [R]."""
        return self.values[:, self.arms.index(arm)]

    def columns(self) -> dict[str, Any]:
        """Return it as columns: ``replicate``, then one an arm."""
        return {"replicate": self.replicates, **{arm: self[arm] for arm in self.arms}}

    def to_pandas(self) -> Any:
        """Return it as a ``pandas.DataFrame``: a row a replicate, a column an arm.

        Raises:
            MissingPackage: pandas is not installed.
        """
        return _pandas().DataFrame(self.columns()).set_index("replicate")


@dataclass(frozen=True)
class Curve:
    """One metric of one run; long ones come in buckets of equal numbers of points.

    Attributes:
        run_id: of the run.
        arm: label of its arm.
        replicate: number of its replicate.
        metric: name.
        x: steps, rounds or seconds, shape [N].
        mean: mean of each bucket, shape [N]; NaN or infinite where a point was.
        low: least value of each bucket, shape [N].
        high: greatest value of each bucket, shape [N].
        total: points that these N stand for.
    """

    run_id: str
    arm: str
    replicate: int
    metric: str
    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    total: int

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Curve:
        """Read one series of the API."""
        import numpy as np

        arrays = {name: np.array(document[name], dtype=np.float64) for name in ("x", "mean", "min", "max")}
        for index, word in document.get("nf", []):
            for name in ("mean", "min", "max"):
                if np.isnan(arrays[name][index]):
                    arrays[name][index] = value_of(word)
        return cls(
            document["run_id"],
            document["group_id"],
            document["replicate"],
            document["metric"],
            arrays["x"],
            arrays["mean"],
            arrays["min"],
            arrays["max"],
            document["total"],
        )


class Series(Sequence[Curve]):
    """Curves of an experiment, one for each run and metric.

    Args:
        document: what the API answers.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.x = str(document["x"])
        self._curves = [Curve.of(item) for item in document["series"]]

    def __repr__(self) -> str:
        """Return what it holds: metrics, arms, numbers of replicates and points."""
        metrics, arms = (", ".join(dict.fromkeys(getattr(c, name) for c in self)) for name in ("metric", "arm"))
        replicates, points = len({curve.replicate for curve in self}), sum(len(curve.x) for curve in self)
        return f"Series({metrics or 'nothing'}: arms {arms}; {replicates} replicates, {points} points by {self.x})"

    def __len__(self) -> int:
        return len(self._curves)

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves)

    def __getitem__(self, index: Any) -> Any:
        """Return a curve by its number, or some by a slice."""
        return self._curves[index]

    def of(self, arm: str, metric: str | None = None) -> list[Curve]:
        """Return the curves of an arm, by replicate."""
        curves = [curve for curve in self if curve.arm == arm and metric in (None, curve.metric)]
        return sorted(curves, key=lambda curve: (curve.metric, curve.replicate))

    def columns(self) -> dict[str, Any]:
        """Return all points as columns: arm, replicate, metric, x, mean, low, high."""
        import numpy as np

        sizes = [len(curve.x) for curve in self]
        columns: dict[str, Any] = {
            name: np.repeat([getattr(curve, name) for curve in self], sizes) for name in ("arm", "replicate", "metric")
        }
        for name in ("x", "mean", "low", "high"):
            columns[name] = np.concatenate([getattr(curve, name) for curve in self] or [np.empty(0)])
        return columns

    def to_pandas(self) -> Any:
        """Return all points as a ``pandas.DataFrame``, one a row.

        Raises:
            MissingPackage: pandas is not installed.
        """
        return _pandas().DataFrame(self.columns())


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise MissingPackage("to_pandas needs pandas, which is not installed here: pip install pandas") from None
