// Learning curves: mean and 95 % band of each arm, replicates on demand, several metrics, one linked cursor.

import { armName, element, number, say } from "../api.js";
import { halfWidth } from "../forest.js";

const KEPT = "lockstep-charts";
const node = (name) => document.getElementById(name);
const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(9).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
// Wide strokes are slow to draw; longer lines are thin.
const MANY = 2000;
const view = { axis: "round", replicates: false, bands: true, smoothing: 0, log: false, hidden: new Set(), extra: JSON.parse(localStorage.getItem(KEPT) || "[]") };
const charts = new Map();

export function mount(store) {
  const again = () => drawAll(store);
  for (const [name, id] of [["replicates", "replicates"], ["bands", "bands"], ["log", "log-y"]]) node(id).addEventListener("change", (event) => { view[name] = event.target.checked; again(); });
  node("smoothing").addEventListener("input", (event) => { view.smoothing = Number(event.target.value); again(); });
  node("axis").addEventListener("change", (event) => { view.axis = event.target.value; again(); });
  node("metric").addEventListener("change", (event) => { view.metric = event.target.value; store.want(view.metric); again(); });
  node("add-chart").addEventListener("change", (event) => { if (event.target.value) change(store, [...view.extra, event.target.value]); event.target.value = ""; });
  node("save-csv").addEventListener("click", () => saveCsv(store));
  node("save-png").addEventListener("click", () => savePng());
  store.on(["experiment", "metrics", "points"], () => { offer(store); again(); });
  store.on(["experiment"], () => legend(store, again));
  new ResizeObserver(() => charts.forEach((chart) => chart.plot && chart.plot.setSize({ width: chart.box.clientWidth, height: chart.height }))).observe(node("chart"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { charts.forEach((chart) => { chart.shape = null; }); again(); });
}

function change(store, extra) {
  view.extra = [...new Set(extra)];
  localStorage.setItem(KEPT, JSON.stringify(view.extra));
  store.want(...view.extra.filter((metric) => store.recorded.has(metric)));
  drawAll(store);
}

function offer(store) {
  if (!store.experiment) return;
  const { primary, training } = store.experiment.shown;
  const names = [...new Set([primary, training, ...store.recorded])];
  for (const select of [node("metric"), node("add-chart")]) {
    const known = new Set([...select.options].map((option) => option.value));
    select.append(...names.filter((name) => !known.has(name)).map((name) => element("option", { value: name }, name)));
  }
  node("metric").value = metricOf(store);
  store.want(...view.extra.filter((metric) => store.recorded.has(metric)));
}

// Chosen when the page opens; a chart does not change under its reader.
export function metricOf(store) {
  if (!view.metric) { view.metric = store.leading; store.want(view.metric); }
  return view.metric;
}

function legend(store, again) {
  node("legend").replaceChildren(...store.arms.map((label, arm) => element("button", {
    type: "button", "aria-pressed": String(!view.hidden.has(arm)), title: "click to hide or show",
    onclick: () => { if (!view.hidden.delete(arm)) view.hidden.add(arm); legend(store, again); again(); },
  }, armName(label, arm))));
}

function drawAll(store) {
  if (!store.experiment) return;
  drawChart(store, "chart", node("chart"), metricOf(store), 320);
  const wanted = view.extra.filter((metric) => store.recorded.has(metric));
  const box = node("more-charts");
  for (const [name, chart] of charts) if (name !== "chart" && !wanted.includes(name)) { chart.plot && chart.plot.destroy(); chart.frame.remove(); charts.delete(name); }
  for (const metric of wanted) {
    if (!charts.has(metric)) {
      const inner = element("div", { class: "chart", style: { minHeight: "200px" } });
      const frame = element("div", {}, element("h2", {}, metric, " ", element("button", { "aria-label": `remove ${metric}`, onclick: () => change(store, view.extra.filter((one) => one !== metric)) }, "×")), inner);
      box.append(frame);
      charts.set(metric, { box: inner, frame });
    }
    drawChart(store, metric, charts.get(metric).box, metric, 200);
  }
  const { total, shown } = store.counted;
  node("shown").textContent = total ? `Showing ${number(shown)} of ${number(total)} points${shown < total ? ", in buckets" : ""}.` : "";
}

const colour = (arm) => getComputedStyle(document.documentElement).getPropertyValue(`--arm${arm}`).trim();

function place(point, run, spread) {
  if (view.axis === "round") return point.round;
  if (view.axis === "step") return (point.round + 1) * spread;
  return point.t;
}

function columns(store, metric) {
  const some = [...store.runs.values()].find((run) => run.rounds_done);
  const spread = some ? some.env_steps / some.rounds_done : 1;
  const lines = store.lines(metric).filter((line) => !view.hidden.has(line.arm)).map((line) => ({
    ...line, at: new Map(line.points.map((point) => [place(point, line.run, spread), point.value]).filter(([x]) => x !== null && x !== undefined)),
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

function drawChart(store, name, box, metric, height) {
  const { xs, lines } = columns(store, metric);
  const series = [{}], data = [Float64Array.from(xs)], bands = [];
  const shows = { show: xs.length < 2 };
  const add = (values, style) => { data.push(values.map((value) => (value === null || !Number.isFinite(value) || (view.log && value <= 0) ? null : value))); series.push({ spanGaps: true, points: shows, ...style }); };
  store.arms.forEach((label, arm) => {
    const mine = lines.filter((line) => line.arm === arm);
    if (!mine.length) return;
    const stroke = colour(arm), dash = arm > 1 ? [[8, 4], [2, 3]][arm % 2] : undefined;
    const rows = xs.map((x) => mine.map((line) => line.at.get(x)).filter((value) => value !== undefined && value !== null && Number.isFinite(value)));
    const mean = rows.map((values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null));
    if (view.replicates || mine.length === 1) for (const line of mine) add(xs.map((x) => line.at.get(x) ?? null), { label: `${label}, replicate ${line.run.replicate}`, stroke: `${stroke}55`, width: 1 });
    if (view.bands && mine.length > 1) {
      const half = rows.map((values) => halfWidth(values));
      add(mean.map((value, index) => (half[index] === null ? null : value + half[index])), { stroke: "transparent", width: 0 });
      add(mean.map((value, index) => (half[index] === null ? null : value - half[index])), { stroke: "transparent", width: 0 });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}26` });
    }
    if (view.smoothing) add(mean, { stroke: `${stroke}55`, width: 1 });
    add(smooth(mean), { label: `${label} (mean of ${mine.length})`, stroke, width: mean.length > MANY ? 1 : 2.5, dash, isMean: true });
  });
  const chart = charts.get(name) || { box };
  charts.set(name, chart);
  Object.assign(chart, { height, seen: { metric, xs, series, data } });
  box.dataset.points = String(lines.reduce((sum, line) => sum + line.points.length, 0));
  const shape = JSON.stringify([view.axis, view.log, series.map((one) => one.label || ""), bands.length, shows.show]);
  if (chart.plot && chart.shape === shape) { chart.plot.setData(data); return; }
  if (chart.plot) chart.plot.destroy();
  chart.shape = shape;
  chart.plot = new uPlot(options(box, metric, height, series, bands), data, box);
}

function options(box, metric, height, series, bands) {
  const style = getComputedStyle(document.body);
  const axis = { stroke: style.color, font: "12px system-ui", grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
  const time = view.axis === "time";
  const shown = series.map((one) => { const { isMean, ...rest } = one; return rest; });
  return {
    width: box.clientWidth || 600, height, series: shown, bands, legend: { show: false },
    scales: { x: { time }, y: view.log ? { distr: 3 } : {} },
    axes: [time ? axis : { ...axis, incrs: WHOLE, label: view.axis === "step" ? "env steps" : "round", labelFont: "12px system-ui", labelSize: 16, size: 30, gap: 4 }, { ...axis, size: 56 }],
    cursor: { sync: { key: "lockstep" }, points: { size: 6 } },
    hooks: { setCursor: [(plot) => hint(plot, series, metric)] },
  };
}

function hint(plot, series, metric) {
  const at = plot.cursor.idx;
  if (plot.cursor.event === null && at === null) return;
  const values = series.map((one, index) => (one.isMean && at !== null && plot.data[index][at] !== null && plot.data[index][at] !== undefined ? `${one.label.replace(/ \(mean.*/, "")} ${number(plot.data[index][at])}` : null)).filter(Boolean);
  node("hint").textContent = values.length ? `${metric} at ${view.axis} ${view.axis === "time" ? new Date(1000 * plot.data[0][at]).toLocaleTimeString() : number(plot.data[0][at])}: ${values.join(" · ")}` : "";
}

function save(name, url) {
  element("a", { href: url, download: name }).click();
}

function saveCsv(store) {
  const { metric, xs, series, data } = charts.get("chart").seen;
  const named = series.map((one, index) => [one.label, index]).filter(([label]) => label);
  const lines = [[view.axis, ...named.map(([label]) => label)], ...xs.map((x, row) => [x, ...named.map(([, index]) => data[index][row] ?? "")])];
  const text = lines.map((line) => line.map((cell) => (/[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell)).join(",")).join("\n");
  save(`${store.id}-${metric.replaceAll("/", "-")}.csv`, URL.createObjectURL(new Blob([text], { type: "text/csv" })));
}

function savePng() {
  const { plot, seen } = charts.get("chart");
  if (!plot) { say(new Error("there is no curve yet")); return; }
  plot.ctx.canvas.toBlob((blob) => save(`${seen.metric.replaceAll("/", "-")}.png`, URL.createObjectURL(blob)));
}
