// Curves of several experiments in one chart: a colour an arm, a dash an experiment.

import { element, mark, number, say } from "../api.js";
import { saveCsv, savePng, saveSvg } from "../export.js";
import { halfWidth } from "../forest.js";
import { colour, linesOf } from "./overlaid.js";

const DASHES = [undefined, [8, 4], [2, 3], [12, 4, 2, 4], [4, 2], [16, 4], [8, 3, 2, 3, 2, 3], [1, 4]];
const node = (name) => document.getElementById(name);
const kept = { metric: null, key: "", lines: [], plot: null, seen: null, hidden: new Set() };

export function mount(compared) {
  node("metric").addEventListener("change", (event) => {
    kept.metric = event.target.value;
    draw(compared()).catch(say);
  });
  node("bands").addEventListener("change", () => show(compared()));
  node("save-csv").addEventListener("click", () => kept.seen && saveCsv("compared", kept.seen));
  node("save-png").addEventListener("click", () => kept.plot && savePng(kept.seen, kept.plot));
  node("save-svg").addEventListener("click", () => kept.seen && saveSvg(kept.seen));
  new ResizeObserver(() => kept.plot && kept.plot.setSize({ width: node("chart").clientWidth, height: 320 })).observe(
    node("chart"),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(compared()));
}

export async function draw(compared) {
  offer(compared);
  kept.lines = (await Promise.all(compared.map((one, index) => linesOf(one, index, kept.metric)))).flat();
  colour(kept.lines, compared);
  show(compared);
}

function offer(compared) {
  const primaries = compared.map(({ experiment }) => experiment.shown.primary);
  const names = [...new Set([...primaries, ...compared.flatMap((one) => one.metrics)])];
  const known = new Set([...node("metric").options].map((option) => option.value));
  node("metric").append(
    ...names.filter((name) => !known.has(name)).map((name) => element("option", { value: name }, name)),
  );
  const recorded = (name) => compared.some((one) => one.metrics.includes(name));
  kept.metric =
    kept.metric ||
    primaries.find(recorded) ||
    compared.map((one) => one.experiment.shown.training).find(recorded) ||
    primaries[0];
  node("metric").value = kept.metric;
}

function show(compared) {
  const box = node("chart");
  const style = getComputedStyle(document.documentElement);
  const xs = [...new Set(kept.lines.flatMap((line) => [...line.at.keys()]))].sort((a, b) => a - b);
  const series = [{}],
    data = [xs],
    bands = [];
  for (const line of kept.lines) {
    const stroke = style.getPropertyValue(`--arm${line.arm}`).trim();
    const mean = xs.map((x) =>
      line.at.has(x) ? line.at.get(x).reduce((a, b) => a + b, 0) / line.at.get(x).length : null,
    );
    const half = xs.map((x) => (line.at.has(x) ? halfWidth(line.at.get(x)) : null));
    if (node("bands").checked && line.replicates > 1) {
      for (const sign of [1, -1]) {
        data.push(mean.map((value, i) => (half[i] === null || value === null ? null : value + sign * half[i])));
        series.push({ stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
      }
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}26` });
    }
    data.push(mean);
    series.push({
      label: `${line.experiment}: ${line.label}`,
      stroke,
      width: 2.5,
      dash: DASHES[line.index],
      spanGaps: true,
      isMean: true,
      points: { show: xs.length < 2 },
    });
  }
  kept.seen = { metric: kept.metric, axis: "round", xs, series, data, bands };
  legend(compared, style);
  table();
  if (kept.plot) kept.plot.destroy();
  box.dataset.points = String(kept.lines.reduce((sum, line) => sum + line.at.size, 0));
  box.setAttribute(
    "aria-label",
    `${kept.metric} over rounds, ${kept.lines.length} curves; their last values stand below under Data`,
  );
  kept.plot = xs.length ? new uPlot(options(box), data, box) : null;
}

function options(box) {
  const style = getComputedStyle(document.body);
  const axis = {
    stroke: style.color,
    font: "12px system-ui",
    grid: { stroke: style.getPropertyValue("--line"), width: 1 },
    ticks: { show: false },
  };
  const shown = kept.seen.series.map((one) => {
    const { isMean, ...rest } = one;
    return rest;
  });
  return {
    width: box.clientWidth || 600,
    height: 320,
    series: shown,
    bands: kept.seen.bands,
    legend: { show: false },
    scales: { x: { time: false } },
    axes: [
      {
        ...axis,
        label: "round",
        labelFont: "12px system-ui",
        labelSize: 16,
        size: 30,
        gap: 4,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000],
      },
      { ...axis, size: 56 },
    ],
    hooks: { setCursor: [hint] },
  };
}

function hint(plot) {
  const at = plot.cursor.idx;
  const told =
    at === null || at === undefined
      ? []
      : kept.seen.series.flatMap((one, index) =>
          one.isMean && Number.isFinite(plot.data[index][at]) ? [`${one.label} ${number(plot.data[index][at])}`] : [],
        );
  node("hint").textContent = told.length
    ? `${kept.metric} at round ${number(plot.data[0][at])}: ${told.join(" · ")}`
    : "";
}

function legend(compared, style) {
  node("legend").replaceChildren(
    ...kept.lines.map((line) =>
      element(
        "span",
        { class: "key" },
        mark(
          "svg",
          { width: 32, height: 8, "aria-hidden": "true" },
          mark("line", {
            x1: 0,
            x2: 32,
            y1: 4,
            y2: 4,
            "stroke-width": 2.5,
            "stroke-dasharray": (DASHES[line.index] || []).join(" ") || null,
            stroke: style.getPropertyValue(`--arm${line.arm}`).trim(),
          }),
        ),
        " ",
        element("bdi", {}, line.experiment),
        ": ",
        element("bdi", {}, line.label),
      ),
    ),
  );
  if (!kept.lines.length)
    node("legend").append(
      element("span", { class: "empty" }, compared.length ? `No round with ${kept.metric} yet.` : ""),
    );
}

function table() {
  node("last").tBodies[0].replaceChildren(
    ...kept.lines.map((line) => {
      const round = Math.max(...line.at.keys()),
        values = line.at.get(round);
      return element(
        "tr",
        {},
        element("td", {}, element("bdi", {}, line.experiment)),
        element("td", {}, element("bdi", {}, line.label)),
        element("td", { class: "number" }, number(round)),
        element("td", { class: "number" }, number(values.reduce((a, b) => a + b, 0) / values.length)),
        element("td", { class: "number" }, String(values.length)),
      );
    }),
  );
}
