"""Dispatch of golden cases to the functions that the report uses; no arithmetic of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.report.numbers import ends
from lockstep.stats import companions, exact, multiplicity, planning, sequential
from lockstep.stats.companions import (
    effect_sizes,
    equivalence,
    equivalence_bound,
    interquartile_mean,
    leave_one_out,
    paired_t,
    probability_of_improvement,
    reference_posterior,
    welch,
    welch_from_summary,
)
from lockstep.stats.curves import curve_max_t, logrank
from lockstep.stats.paired import pseudo_median, sign_flip, signed_rank, walsh_interval
from lockstep.stats.results import differences
from lockstep.stats.shares import clopper_pearson, fisher
from lockstep.stats.unpaired import brunner_munzel, hodges_lehmann, mann_whitney, permutation_mean, shift_interval
from tests.golden_verdicts import compare, experiment, pair_verdicts

Inputs = Mapping[str, Any]
Outputs = dict[str, Any]


def evaluate(key: str, inputs: Inputs) -> Outputs:
    """Return the product's answer to a golden case; an unknown key is not implemented."""
    if key not in _KEYS:
        raise NotImplementedError(f"no golden adapter for key {key!r}")
    return _KEYS[key](inputs)


def _rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=0))


def _ranked(values: Sequence[Any]) -> list[float]:
    return [float("-inf") if v == "failed" else float(v) for v in values if v != "lost"]


def _differences(i: Inputs) -> list[float]:
    if "d" in i:
        return list(i["d"])
    first, second = ("a", "b") if "a" in i else ("x", "y")
    return [float(v) for v in differences(i[first], i[second])]


def _mann_whitney(i: Inputs) -> Outputs:
    x, y = _ranked(i["x"]), _ranked(i["y"])
    test = mann_whitney(x, y, _rng())
    out: Outputs = {
        "U": test.u,
        "p_greater": test.p.greater,
        "p_less": test.p.less,
        "p_two_sided": test.p.two_sided,
    }
    out |= {"A12": test.a12, "cliffs_delta": test.cliffs_delta, "HL_shift": None}
    out |= {"CI95": None, "CI90": None, "CI95_coverage": None, "k": None}
    if np.isfinite([*x, *y]).all():
        interval = shift_interval(x, y, 0.05)
        out |= {
            "HL_shift": hodges_lehmann(x, y),
            "CI95": ends(interval),
            "CI90": ends(shift_interval(x, y, 0.1)),
        }
        out |= {"CI95_coverage": interval and interval.coverage, "k": interval and interval.k}
    return out


def _signed_rank(i: Inputs) -> Outputs:
    d = _differences(i)
    test, interval = signed_rank(d), walsh_interval(d, 0.05)
    return {
        "V": test.v,
        "p_greater": test.p.greater,
        "p_less": test.p.less,
        "p_two_sided": test.p.two_sided,
        "HL": pseudo_median(d),
        "CI95": ends(interval),
        "CI90": ends(walsh_interval(d, 0.1)),
        "CI95_coverage": interval and interval.coverage,
        "k": interval and interval.k,
    }


def _sign_flip(i: Inputs) -> Outputs:
    test = sign_flip(_differences(i), _rng())
    return {
        "mean": test.mean,
        "p_greater": test.p.greater,
        "p_less": test.p.less,
        "p_two_sided": test.two_sided,
        "CI95": ends(test.interval(0.05)),
        "CI90": ends(test.interval(0.1)),
    }


def _permutation_mean(i: Inputs) -> Outputs:
    test = permutation_mean(i["x"], i["y"], _rng())
    out: Outputs = {"diff": test.difference, "p_greater": test.p_greater, "p_two_sided": test.p_two_sided}
    return out | {"CI95": ends(test.interval(0.05)), "CI90": ends(test.interval(0.1))}


def _t_test(test: Any) -> Outputs:
    intervals = {"CI95": ends(test.interval(0.05)), "CI90": ends(test.interval(0.1))}
    return {"t": test.t, "df": test.df, "p": test.p, "estimate": test.estimate, **intervals}


def _welch(i: Inputs) -> Outputs:
    return _t_test(welch(i["x"], i["y"]))


def _paired_t(i: Inputs) -> Outputs:
    return _t_test(paired_t(_differences(i)))


def _brunner_munzel(i: Inputs) -> Outputs:
    test = brunner_munzel(_ranked(i["x"]), _ranked(i["y"]), _rng())
    return {
        "W": test.w,
        "df": test.df,
        "p": test.p,
        "p_hat": test.p_hat,
        "fallback_p": test.fallback_p,
        "CI95": ends(test.interval(0.05)),
        "CI90": ends(test.interval(0.1)),
    }


def _effect_size(i: Inputs) -> Outputs:
    e = effect_sizes(i["x"], i["y"])
    return {"cohen_d": e.cohen_d, "J": e.j, "g": e.g, "A12": e.a12, "cliffs_delta": e.cliffs_delta}


def _tost(test: Any) -> Outputs:
    return {
        "bound_raw": test.bound,
        "t_lower": test.t_lower,
        "t_upper": test.t_upper,
        "df": test.df,
        "p_lower": test.p_lower,
        "p_upper": test.p_upper,
        "p_TOST": test.p,
        "CI90": ends(test.interval),
        "equivalent": test.equivalent,
    }


def _tost_welch(i: Inputs) -> Outputs:
    bound = i["bound_raw"] if "bound_raw" in i else equivalence_bound(i["bound_d"], i["sd1"], i["sd2"])
    test = welch_from_summary((i["m1"], i["sd1"], i["n1"]), (i["m2"], i["sd2"], i["n2"]))
    return _tost(equivalence(test, bound, i.get("alpha", 0.05)))


def _tost_paired(i: Inputs) -> Outputs:
    return _tost(equivalence(paired_t(_differences(i)), i["bound"], i.get("alpha", 0.05)))


_ROW_STATISTICS: dict[str, companions.RowStatistic] = {
    "mean": companions.row_mean,
    "plug_in_variance": companions.row_plug_in_variance,
    "sd": companions.row_sd,
    "median": companions.row_median,
    "iqm": companions.row_interquartile_mean,
}


def _bca(i: Inputs) -> Outputs:
    sample = np.asarray(i["x"], dtype=np.float64)
    every = i["resamples"] == "all"
    rows = companions.all_rows(sample) if every else companions.bootstrap_rows(sample, i["resamples"], _rng())
    result = companions.bca_from_rows(sample, _ROW_STATISTICS[i["statistic"]], i["level"], rows)
    out: Outputs = {"theta": result.theta, "z0": result.z0, "acceleration": result.acceleration}
    return out | {"levels": result.levels and list(result.levels), "CI": ends(result.interval)}


def _robust_summary(i: Inputs) -> Outputs:
    out: Outputs = {}
    if "samples" in i:
        out["iqm"] = [interquartile_mean(s) for s in i["samples"]]
    if "poi_tasks_x" in i:
        out["poi"] = probability_of_improvement(i["poi_tasks_x"], i["poi_tasks_y"])
    return out


def _adjust(i: Inputs) -> Outputs:
    return {"holm": multiplicity.holm(i["p"]), "bh": multiplicity.benjamini_hochberg(i["p"])}


def _tukey(i: Inputs) -> Outputs:
    found = {
        "tukey_p": multiplicity.tukey(i["groups"], True),
        "games_howell_p": multiplicity.tukey(i["groups"], False),
    }
    return {name: {f"{a}-{b}": p for (a, b), p in ps.items()} for name, ps in found.items()}


def _dunnett(i: Inputs) -> Outputs:
    arms = [values for name, values in i.items() if name != "control"]
    t, p = multiplicity.dunnett_test(arms, i["control"], _rng())
    return {"t": t, "p": p}


def _max_t_blocks(i: Inputs) -> Outputs:
    result = multiplicity.max_t_blocks(i["blocks"], [tuple(p) for p in i["pairs"]], _rng())
    return {
        "stat": list(result.statistics),
        "p_maxT": list(result.p_max_t),
        "p_pair": list(result.p_pair),
        "p_adj": list(result.p_adjusted),
        "n_perm": result.num_permutations,
    }


def _curve_max_t(i: Inputs) -> Outputs:
    result = curve_max_t(i["d"], _rng())
    return {"T": list(result.statistics), "p_adj": list(result.p_adjusted), "p_any": result.p_any}


def _group_sequential(i: Inputs) -> Outputs:
    return {"z": [list(sequential.equal_boundaries(kind, k, i["alpha"])) for kind, k in i["designs"]]}


def _spending(i: Inputs) -> Outputs:
    return {kind: [sequential.spending(kind, t, i["alpha"]) for t in i["t"]] for kind in ("obf", "pocock")}


def _t_evalue(i: Inputs) -> Outputs:
    return {"E": [sequential.t_evalue(n, t, i.get("g", 1.0)) for n, t in i["points"]]}


def _sign_evalue(i: Inputs) -> Outputs:
    path = sequential.sign_path(_differences(i), i.get("kappas", sequential.KAPPAS))
    return {"E_path": path.tolist(), "p_anytime": sequential.anytime_p(path)}


def _sample_size(i: Inputs) -> Outputs:
    def row(d: float) -> dict[str, int]:
        sizes = [planning.sample_size(d, paired, i["alpha"], i["power"]) for paired in (False, True)]
        return {"unpaired_per_arm": sizes[0], "paired_blocks": sizes[1]}

    return {str(float(d)): row(float(d)) for d in i["d"]}


def _sd_upper(i: Inputs) -> Outputs:
    return {str(n): planning.sd_inflation(n) for n in i["n"]}


def _replicates_needed(i: Inputs) -> Outputs:
    sd = next(i[name] for name in ("s_d", "s", "sd", "s_p", "s_pooled") if name in i)
    goal = planning.Goal(i["sesoi"], i["paired"], i["estimand"], i["alpha"], i["power"])
    found = planning.replicates_needed(i["n_now"], sd, goal)
    if found is None:
        return {"N_plugin": None, "N_upper80": None, "more": None}
    return {"N_plugin": found.plugin, "N_upper80": found.upper80, "more": list(found.more)}


def _alpha_floor(i: Inputs) -> Outputs:
    return {
        name: [exact.smallest_n(alpha, paired) for alpha in i["alpha"]]
        for name, paired in (("MW", False), ("paired", True))
    }


def _min_p(i: Inputs) -> Outputs:
    return {
        str(n): {
            "MW_two_sided": exact.min_p_unpaired(n, n),
            "paired_signflip_or_wilcoxon_two_sided": exact.min_p_paired(n),
        }
        for n in i["n_per_arm"]
    }


def _mw_critical(i: Inputs) -> Outputs:
    return {f"{n},{m}": exact.mann_whitney_critical(n, m, i["alpha"]) for n, m in i["sizes"]}


def _attained_level(i: Inputs) -> Outputs:
    alpha = i["alpha"]
    return {
        "sign_flip": [exact.attained_sign_flip(n, alpha) for n in i.get("sign_flip_n", [])],
        "signed_rank": [exact.attained_signed_rank(n, alpha) for n in i.get("signed_rank_n", [])],
        "mann_whitney": [exact.attained_mann_whitney(n, n, alpha) for n in i.get("mann_whitney_n", [])],
    }


def _leave_one_out(i: Inputs) -> Outputs:
    found = leave_one_out(_differences(i), i["test"], i["alpha"], _rng())
    return {"p_full": found.p_full, "p_range": list(found.p_range), "any_flip": found.any_flip}


def _bayes_reference(i: Inputs) -> Outputs:
    found = reference_posterior(_differences(i), i["sesoi"])
    if found is None:
        return {"p_above": None, "p_rope": None, "p_below": None}
    return {"p_above": found.p_above, "p_rope": found.p_rope, "p_below": found.p_below}


def _logrank(i: Inputs) -> Outputs:
    found = logrank([tuple(row) for row in i["A"]], [tuple(row) for row in i["B"]])
    return {"O_A": found.observed, "E_A": found.expected, "chi2": found.chi2, "p": found.p}


def _friedman(i: Inputs) -> Outputs:
    found = companions.friedman(i["blocks"])
    return {"chi2": found.chi2, "df": found.df, "p": found.p}


def _completion(i: Inputs) -> Outputs:
    found = companions.completion(i["observed"], i["expected"])
    return {"chi2": found.chi2, "df": found.df, "p": found.p}


def _clopper_pearson(i: Inputs) -> Outputs:
    return {f"{k}/{n}": ends(clopper_pearson(k, n, i.get("level", 0.95))) for k, n in i["pairs"]}


def _fisher(i: Inputs) -> Outputs:
    return {"p_two_sided": fisher(i["table"])}


def _ess_ar1(i: Inputs) -> Outputs:
    sizes = [companions.effective_size(i["n"], phi) for phi in i["phi"]]
    return {"asymptotic": [size[0] for size in sizes], "exact": [size[1] for size in sizes]}


def _design_effect(i: Inputs) -> Outputs:
    effect, effective = companions.design_effect(i["m"], i["icc"], i["n_seeds"])
    return {"deff": effect, "effective_n_per_arm": effective}


def _tolerance_normal(i: Inputs) -> Outputs:
    content, confidence = i.get("content", 0.95), i.get("confidence", 0.95)
    return {str(n): companions.normal_factor(n, content, confidence) for n in i["n"]}


def _tolerance_nonparametric(i: Inputs) -> Outputs:
    return {"n": [companions.nonparametric_n(content, confidence) for content, confidence in i["content_confidence"]]}


_KEYS: dict[str, Callable[[Inputs], Outputs]] = {
    "mann_whitney": _mann_whitney,
    "signed_rank": _signed_rank,
    "sign_flip": _sign_flip,
    "permutation_mean": _permutation_mean,
    "welch": _welch,
    "paired_t": _paired_t,
    "brunner_munzel": _brunner_munzel,
    "effect_size": _effect_size,
    "tost_welch_summary": _tost_welch,
    "tost_paired": _tost_paired,
    "bca": _bca,
    "robust_summary": _robust_summary,
    "adjust": _adjust,
    "tukey": _tukey,
    "dunnett": _dunnett,
    "max_t_blocks": _max_t_blocks,
    "curve_max_t": _curve_max_t,
    "group_sequential": _group_sequential,
    "spending": _spending,
    "t_evalue": _t_evalue,
    "sign_evalue": _sign_evalue,
    "sample_size": _sample_size,
    "sd_upper": _sd_upper,
    "replicates_needed": _replicates_needed,
    "alpha_floor": _alpha_floor,
    "min_p": _min_p,
    "mw_critical": _mw_critical,
    "attained_level": _attained_level,
    "pair_verdict": pair_verdicts,
    "compare": compare,
    "experiment": experiment,
    "leave_one_out": _leave_one_out,
    "bayes_reference": _bayes_reference,
    "logrank": _logrank,
    "friedman": _friedman,
    "completion_chisq": _completion,
    "clopper_pearson": _clopper_pearson,
    "fisher": _fisher,
    "ess_ar1": _ess_ar1,
    "design_effect": _design_effect,
    "tolerance_normal": _tolerance_normal,
    "tolerance_nonparametric": _tolerance_nonparametric,
}
