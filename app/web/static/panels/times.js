// When the rounds of a snapshot were: asked for once a reader wants to see curves over time.

import { call } from "../api.js";

const MOST = 200;
const asked = new WeakSet(); // what snapshots brought: another one brings points without times again

// Gives the points of a metric their times; those that come live have them already.
export async function findTimes(store, metric) {
  const lines = store.points.get(metric);
  if (!lines || asked.has(lines)) return;
  asked.add(lines);
  const runs = [...lines].filter(([, line]) => [...line.values()].some((point) => point.t === null)).map(([id]) => id);
  for (let first = 0; first < runs.length; first += MOST) {
    const query = new URLSearchParams({ metrics: metric, x: "time", max_points: "1000" });
    for (const run of runs.slice(first, first + MOST)) query.append("runs", run);
    const { series } = await call("GET", `experiments/${store.id}/series?${query}`);
    for (const { run_id, x } of series) {
      const rounds = [...(lines.get(run_id) || new Map())].sort(([a], [b]) => a - b);
      rounds.slice(0, x.length).forEach(([, point], index) => {
        point.t = x[index]; // both are cut into the same buckets, and come in the order of rounds
      });
    }
  }
  if (runs.length) store.tell("times");
}
