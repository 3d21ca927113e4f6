// The curve chart: thin line per replicate, dense mean per arm; one redraw a frame, stroke width 1.

import { COLOURS } from "./api.js";

// Rounds and env steps are whole numbers, so are their ticks.
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(9).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);

export class Curves {
  constructor(box) {
    this.box = box;
    this.runs = new Map();     // run id -> {arm, replicate}
    this.points = new Map();   // run id -> Map(round -> {x, y, attempt})
    this.showReplicates = true;
    this.smoothing = 0;
    this.axis = "round";
    new ResizeObserver(() => this.resize()).observe(box);
  }

  setRuns(runs, arms) {
    this.arms = arms;
    for (const run of runs) this.runs.set(run.id, { arm: arms.indexOf(run.group_id), replicate: run.replicate });
  }

  clear() {
    this.points.clear();
    this.draw();
  }

  add(runId, rounds, xs, values) {
    const line = this.points.get(runId) || new Map();
    rounds.forEach((round, index) => line.set(`${round}/${xs[index]}`, { x: xs[index], y: values[index] }));
    this.points.set(runId, line);
    this.schedule();
  }

  truncate(runId, fromRound) {
    const line = this.points.get(runId);
    if (!line) return;
    for (const key of line.keys()) if (Number(key.split("/")[0]) >= fromRound) line.delete(key);
    this.schedule();
  }

  schedule() {
    if (this.pending) return;
    this.pending = setTimeout(() => { this.pending = null; requestAnimationFrame(() => this.draw()); }, 250);
  }

  data() {
    const lines = [];
    for (const [runId, run] of this.runs) {
      const points = [...(this.points.get(runId) || new Map()).values()].sort((a, b) => a.x - b.x);
      if (points.length) lines.push({ ...run, points });
    }
    const xs = [...new Set(lines.flatMap((line) => line.points.map((point) => point.x)))].sort((a, b) => a - b);
    const columns = lines.map((line) => {
      const at = new Map(line.points.map((point) => [point.x, point.y]));
      return { ...line, values: this.smooth(xs.map((x) => (at.has(x) ? at.get(x) : null))) };
    });
    return { xs, columns };
  }

  smooth(values) {
    if (!this.smoothing) return values;
    const weight = this.smoothing / 10;
    let last = null;
    return values.map((value) => {
      if (value === null) return null;
      last = last === null ? value : weight * last + (1 - weight) * value;
      return last;
    });
  }

  draw() {
    const { xs, columns } = this.data();
    const series = [{ label: this.axis }];
    const data = [Float64Array.from(xs)];
    (this.arms || []).forEach((label, arm) => {
      const mine = columns.filter((column) => column.arm === arm);
      for (const column of this.showReplicates ? mine : []) {
        series.push({ label: `${label} r${column.replicate}`, stroke: COLOURS[arm] + "66", width: 1, spanGaps: true, points: { show: xs.length < 2 } });
        data.push(column.values);
      }
      const mean = xs.map((_, index) => {
        const values = mine.map((column) => column.values[index]).filter((value) => value !== null);
        return values.length && values.length === mine.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
      });
      series.push({ label: `${label} (mean)`, stroke: COLOURS[arm], width: 1, dash: arm === 0 ? [8, 4] : undefined, spanGaps: true, points: { show: xs.length < 2 } });
      data.push(mean);
    });
    this.box.dataset.points = String(columns.reduce((sum, column) => sum + column.points.length, 0));
    const shape = `${this.axis}:${series.length}`;
    if (this.plot && shape === this.shape) { this.plot.setData(data); return; }
    if (this.plot) this.plot.destroy();
    this.shape = shape;
    const style = getComputedStyle(document.body);
    const axis = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
    this.plot = new uPlot({ width: this.box.clientWidth || 800, height: 340, series, scales: { x: { time: this.axis === "time" } }, axes: [this.axis === "time" ? axis : { ...axis, incrs: WHOLE }, axis], legend: { live: false }, cursor: { sync: { key: "lockstep" } } }, data, this.box);
  }

  resize() {
    if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: 340 });
  }
}
