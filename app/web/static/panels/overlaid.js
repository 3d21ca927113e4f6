// The lines of several experiments: one an arm, with its replicates' values, and the colours that keep arms apart.

import { call } from "../api.js";

const MOST_RUNS = 200,
  MOST_VALUES = 200_000;

// One line an arm: rounds, mean and half width of its interval, over replicates.
export async function linesOf({ id, experiment, runs }, index, metric) {
  const begun = runs
    .filter((run) => run.rounds_done > 0)
    .sort((a, b) => a.replicate - b.replicate)
    .slice(0, MOST_RUNS);
  if (!begun.length) return [];
  const query = new URLSearchParams({
    metrics: metric,
    x: "round",
    max_points: Math.max(2, Math.min(1000, Math.floor(MOST_VALUES / begun.length))),
  });
  if (begun.length < runs.length) for (const run of begun) query.append("runs", run.id);
  const { series } = await call("GET", `experiments/${id}/series?${query}`);
  return experiment.arms
    .map((arm) => {
      const own = series.filter((one) => one.group_id === arm.label && one.total > 0);
      const at = new Map();
      for (const one of own)
        one.x.forEach((x, place) => {
          if (Number.isFinite(one.mean[place])) at.set(x, [...(at.get(x) || []), one.mean[place]]);
        });
      return { index, label: arm.label, experiment: experiment.name, replicates: own.length, at };
    })
    .filter((line) => line.at.size > 0);
}

// An arm that two experiments share has one colour; the first experiment's arms keep their own.
export function colour(lines, compared) {
  const labels = [...new Set(compared.flatMap(({ experiment }) => experiment.arms.map((arm) => arm.label)))];
  for (const line of lines) line.arm = labels.indexOf(line.label) % 8;
}
