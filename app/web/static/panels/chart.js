// One chart of the experiment page: mean and band of each arm, replicates on demand, and what stands under the cursor.

import { duration, number } from "../api.js";
import { halfWidth } from "../forest.js";

export const KEPT = "lockstep-charts";
const node = (name) => document.getElementById(name);
const WHOLE = [1, 2, 5]
  .flatMap((digit) => [...Array(9).keys()].map((power) => digit * 10 ** power))
  .sort((a, b) => a - b);
// Wide strokes are slow to draw; longer lines are thin.
const MANY = 2000;
// What the reader has chosen, for all charts, and the charts by name.
export const view = {
  axis: "round",
  replicates: false,
  bands: true,
  smoothing: 0,
  log: false,
  hidden: new Set(),
  extra: JSON.parse(localStorage.getItem(KEPT) || "[]"),
};
export const charts = new Map();

const colour = (arm) => getComputedStyle(document.documentElement).getPropertyValue(`--arm${arm}`).trim();

// Where each round stands: by itself, by steps, or by the mean time of an arm's replicates since their first round,
// so that a mean is always of one round.
function places(lines, spread) {
  if (view.axis === "round") return (_, point) => point.round;
  if (view.axis === "step") return (_, point) => (point.round + 1) * spread;
  const sums = new Map();
  for (const { arm, points } of lines) {
    const timed = points.filter((point) => point.t !== null && point.t !== undefined);
    for (const { round, t } of timed) {
      const key = `${arm} ${round}`,
        [sum, count] = sums.get(key) || [0, 0];
      sums.set(key, [sum + t - timed[0].t, count + 1]);
    }
  }
  return (arm, point) => {
    const [sum, count] = sums.get(`${arm} ${point.round}`) || [0, 0];
    return count ? sum / count : null;
  };
}

function columns(store, metric) {
  const some = [...store.runs.values()].find((run) => run.rounds_done);
  const spread = some ? some.env_steps / some.rounds_done : 1;
  const drawn = store.lines(metric).filter((line) => !view.hidden.has(line.arm));
  const place = places(drawn, spread);
  const lines = drawn.map((line) => ({
    ...line,
    at: new Map(
      line.points.map((point) => [place(line.arm, point), point.value]).filter(([x]) => x !== null && x !== undefined),
    ),
  }));
  const xs = [...new Set(lines.flatMap((line) => [...line.at.keys()]))].sort((a, b) => a - b);
  return { xs, lines };
}

function smooth(values) {
  const weight = view.smoothing / 10;
  let last = null;
  return values.map((value) => {
    if (value === null) return null;
    last = last === null || !weight ? value : weight * last + (1 - weight) * value;
    return last;
  });
}

export function drawChart(store, name, box, metric, height) {
  const { xs, lines } = columns(store, metric);
  const series = [{}],
    data = [Float64Array.from(xs)],
    bands = [];
  const shows = { show: xs.length < 2 };
  const add = (values, style) => {
    data.push(
      values.map((value) => (value === null || !Number.isFinite(value) || (view.log && value <= 0) ? null : value)),
    );
    series.push({ spanGaps: true, points: shows, ...style });
  };
  store.arms.forEach((label, arm) => {
    const mine = lines.filter((line) => line.arm === arm);
    if (!mine.length) return;
    const stroke = colour(arm),
      dash =
        arm > 1
          ? [
              [8, 4],
              [2, 3],
            ][arm % 2]
          : undefined;
    const rows = xs.map((x) =>
      mine
        .map((line) => line.at.get(x))
        .filter((value) => value !== undefined && value !== null && Number.isFinite(value)),
    );
    const mean = rows.map((values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null));
    if (view.replicates || mine.length === 1)
      for (const line of mine)
        add(
          xs.map((x) => line.at.get(x) ?? null),
          { label: `${label}, replicate ${line.run.replicate}`, stroke: `${stroke}55`, width: 1 },
        );
    if (view.bands && mine.length > 1) {
      const half = rows.map((values) => halfWidth(values));
      add(
        mean.map((value, index) => (half[index] === null ? null : value + half[index])),
        { stroke: "transparent", width: 0 },
      );
      add(
        mean.map((value, index) => (half[index] === null ? null : value - half[index])),
        { stroke: "transparent", width: 0 },
      );
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}26` });
    }
    if (view.smoothing) add(mean, { stroke: `${stroke}55`, width: 1 });
    add(smooth(mean), {
      label: `${label} (mean of ${mine.length})`,
      stroke,
      width: mean.length > MANY ? 1 : 2.5,
      dash,
      isMean: true,
    });
  });
  const chart = charts.get(name) || { box };
  charts.set(name, chart);
  Object.assign(chart, { height, seen: { metric, axis: view.axis, log: view.log, xs, series, data, bands } });
  box.dataset.points = String(lines.reduce((sum, line) => sum + line.points.length, 0));
  box.dataset.axis = xs.length ? view.axis : ""; // times come after the points
  const shape = JSON.stringify([view.axis, view.log, series.map((one) => one.label || ""), bands.length, shows.show]);
  if (chart.plot && chart.shape === shape) {
    chart.plot.setData(data);
    if (chart.plot.height !== height) chart.plot.setSize({ width: box.clientWidth || 600, height });
    return;
  }
  if (chart.plot) chart.plot.destroy();
  chart.shape = shape;
  chart.plot = new uPlot(options(box, metric, height, series, bands), data, box);
}

// One point stands in the middle, not at the left of a hundred.
const around = ({ data: [xs] }, least, most) => (xs.length === 1 ? [xs[0] - 1, xs[0] + 1] : [least, most]);

function options(box, metric, height, series, bands) {
  const style = getComputedStyle(document.body);
  const axis = {
    stroke: style.color,
    font: "12px system-ui",
    grid: { stroke: style.getPropertyValue("--line"), width: 1 },
    ticks: { show: false },
  };
  const time = view.axis === "time";
  const shown = series.map((one) => {
    const { isMean, ...rest } = one;
    return rest;
  });
  return {
    width: box.clientWidth || 600,
    height,
    series: shown,
    bands,
    legend: { show: false },
    scales: { x: { time: false, range: around }, y: view.log ? { distr: 3 } : {} },
    axes: [
      time
        ? { ...axis, values: (_, values) => values.map(duration), space: 80 }
        : {
            ...axis,
            incrs: WHOLE,
            label: view.axis === "step" ? "env steps" : "round",
            labelFont: "12px system-ui",
            labelSize: 16,
            size: 30,
            gap: 4,
          },
      { ...axis, size: 56 },
    ],
    cursor: { sync: { key: "lockstep" }, points: { size: 6 } },
    hooks: { setCursor: [(plot) => hint(plot, series, metric)] },
  };
}

function hint(plot, series, metric) {
  const at = plot.cursor.idx;
  if (plot.cursor.event === null && at === null) return;
  const values = series
    .map((one, index) =>
      one.isMean && at !== null && plot.data[index][at] !== null && plot.data[index][at] !== undefined
        ? `${one.label.replace(/ \(mean.*/, "")} ${number(plot.data[index][at])}`
        : null,
    )
    .filter(Boolean);
  node("hint").textContent = values.length
    ? `${metric} at ${view.axis} ${view.axis === "time" ? duration(plot.data[0][at]) : number(plot.data[0][at])}: ${values.join(" · ")}`
    : "";
}
