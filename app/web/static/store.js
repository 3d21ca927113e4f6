// What a page knows of one experiment, fed by the API and the live stream. Panels listen for what changed.

import { all, call, over, say } from "./api.js";
import { Live } from "./live.js";

export class Store {
  constructor(id) {
    this.id = id;
    this.experiment = null;
    this.runs = new Map();
    this.blocks = new Map();
    this.comparisons = new Map();
    this.points = new Map(); // metric -> run id -> round -> {value, t}
    this.recorded = new Set(); // metrics that some run has
    this.counted = { total: 0, shown: 0 };
    this.wanted = new Set();
    this.connection = ["", ""];
    this.listeners = new Map();
    this.live = new Live(
      id,
      (frame) => this.take(frame),
      (...state) => {
        this.connection = state;
        this.tell("connection");
      },
    );
  }

  on(kinds, act) {
    for (const kind of kinds) this.listeners.set(kind, [...(this.listeners.get(kind) || []), act]);
  }

  // Panels are drawn four times a second at most, in a frame, whatever came meanwhile; the first curve at once.
  tell(kind) {
    this.pending = this.pending || new Set();
    this.pending.add(kind);
    const isFirst = kind === "points" && !this.hasDrawn;
    if (this.timer && !isFirst) return;
    clearTimeout(this.timer);
    this.hasDrawn = this.hasDrawn || isFirst;
    this.timer = setTimeout(
      () =>
        requestAnimationFrame(() => {
          this.timer = null;
          const acts = new Set([...this.pending].flatMap((one) => this.listeners.get(one) || []));
          this.pending.clear();
          acts.forEach((act) => act());
        }),
      isFirst ? 0 : 250,
    );
  }

  async load() {
    await this.refresh();
    await this.findMetrics();
    this.want(this.experiment.shown.primary, this.experiment.shown.training);
  }

  async refresh() {
    const at = `experiments/${this.id}`;
    const [experiment, runs, blocks] = await Promise.all([call("GET", at), all(`${at}/runs`), all(`${at}/blocks`)]);
    this.experiment = experiment;
    this.arms = experiment.arms.map((arm) => arm.label);
    this.runs = new Map(runs.items.map((run) => [run.id, run]));
    this.blocks = new Map(blocks.items.map((block) => [block.id, { ...block, complete_rounds: block.open_round }]));
    this.tell("experiment");
  }

  refreshSoon() {
    if (this.refreshing) return;
    this.refreshing = setTimeout(async () => {
      this.refreshing = null;
      try {
        await this.refresh();
        if (!this.recorded.size) await this.findMetrics();
      } catch (error) {
        say(error);
      }
    }, 1000);
  }

  async findMetrics() {
    const first = [...this.runs.values()].find((run) => run.rounds_done > 0);
    if (first) this.recorded = new Set((await call("GET", `runs/${first.id}`)).metrics);
    this.tell("metrics");
  }

  // The registered primary once there is one; until its first evaluation its counterpart, recorded every round.
  get leading() {
    const { primary, training } = this.experiment.shown;
    return this.recorded.has(primary) ? primary : training;
  }

  want(...metrics) {
    const missing = metrics.filter((metric) => !this.wanted.has(metric));
    missing.forEach((metric) => this.wanted.add(metric));
    if (missing.length) this.live.subscribe([...this.wanted]);
  }

  // The newest block of each replicate: a replicate that was tried again counts once.
  get current() {
    const newest = new Map();
    for (const block of this.blocks.values())
      if (!(newest.get(block.replicate)?.generation > block.generation)) newest.set(block.replicate, block);
    return [...newest.values()].sort((a, b) => a.replicate - b.replicate);
  }

  line(metric, runId) {
    if (!this.points.has(metric)) this.points.set(metric, new Map());
    const lines = this.points.get(metric);
    if (!lines.has(runId)) lines.set(runId, new Map());
    return lines.get(runId);
  }

  // Lines of one metric: {run, arm, points: [{round, value, t}]}, by replicate.
  lines(metric) {
    const counted = new Set(this.current.map((block) => block.id));
    return [...(this.points.get(metric) || new Map())]
      .filter(([id]) => this.runs.has(id) && counted.has(this.runs.get(id).block_id))
      .map(([id, line]) => {
        const run = this.runs.get(id);
        const points = [...line].map(([round, point]) => ({ round, ...point })).sort((a, b) => a.round - b.round);
        return { run, arm: this.arms.indexOf(run.group_id), points };
      })
      .filter((line) => line.points.length)
      .sort((a, b) => a.run.replicate - b.run.replicate);
  }

  take(frame) {
    if (frame.type === "snapshot") this.takeSnapshot(frame);
    else if (frame.type === "delta") this.takeDelta(frame);
    else if (frame.type === "truncate") this.truncate(frame);
    else if (frame.type === "end") {
      this.tell("end");
      this.refreshSoon();
    } else if (frame.event) this.takeEvent(frame);
  }

  takeSnapshot(frame) {
    this.points.clear();
    this.counted = { total: 0, shown: 0 };
    for (const series of frame.series) {
      const line = this.line(series.metric, series.run_id);
      series.x.forEach((round, index) => line.set(round, { value: series.mean[index], t: null }));
      this.counted.total += series.total;
      this.counted.shown += series.shown;
      if (series.total) this.recorded.add(series.metric);
    }
    for (const block of frame.blocks) Object.assign(this.blocks.get(block.id) || {}, block);
    this.comparisons = new Map(Object.entries(frame.comparisons));
    this.tell("points");
    this.tell("rounds");
  }

  takeDelta(frame) {
    for (const columns of frame.points) {
      this.recorded.add(columns.metric);
      if (!this.wanted.has(columns.metric)) continue;
      const line = this.line(columns.metric, columns.run_id);
      columns.round.forEach((round, index) => line.set(round, { value: columns.value[index], t: columns.t[index] }));
      this.counted.total += columns.round.length;
      this.counted.shown += columns.round.length;
    }
    if (frame.points.length) this.tell("points");
    for (const item of frame.rounds) {
      const block = this.blocks.get(item.block_id);
      if (block) block.complete_rounds = item.round + 1;
      for (const run of this.runs.values()) if (run.block_id === item.block_id) run.rounds_done = item.round + 1;
      this.comparisons.set(item.block_id, item.comparison);
    }
    if (frame.rounds.length) {
      this.tell("rounds");
      this.refreshSoon();
    }
  }

  truncate(frame) {
    for (const lines of this.points.values()) {
      const line = lines.get(frame.run);
      if (line) for (const round of line.keys()) if (round >= frame.from_round) line.delete(round);
    }
    this.tell("points");
  }

  takeEvent(frame) {
    this.newest = frame.event;
    this.tell("event");
    if (frame.type !== "status") return;
    const block = this.blocks.get(frame.event.block_id);
    if (block && frame.event.type === "block_status")
      Object.assign(block, { status: frame.event.status, cause: frame.event.cause });
    this.tell("rounds");
    this.refreshSoon();
  }

  get isOver() {
    return over(this.experiment.status);
  }
}
