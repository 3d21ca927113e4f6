// What the experiment is about: the difference of two arms in every replicate, beside zero and the band that matters.

import { aligned, armName, element, mark, number, short, signed } from "../api.js";
import { saveShown } from "../export.js";
import { ground, halfWidth, scaleOf } from "../forest.js";
import { divergence, diverges } from "./diverged.js";

const ROW = 22,
  LEFT = 92,
  RIGHT = 74,
  TRAIL = 6,
  LETTER = 7; // of 12 px, on average and a little more
let width = 460; // of the box: letters of a picture are as large as those beside it

export function mount(store) {
  const box = document.getElementById("difference");
  const pick = document.getElementById("difference-pair");
  pick.addEventListener("change", () => {
    pick.dataset.isChosen = "yes";
    draw(store, box, pick);
  });
  document
    .getElementById("difference-svg")
    .addEventListener("click", () => saveShown(box.querySelector("svg"), `${store.id}-difference`));
  store.on(["experiment"], () => offer(store, pick));
  new ResizeObserver(() => {
    if (store.experiment && Math.abs(widthOf(box) - width) > 8) draw(store, box, pick);
  }).observe(box);
  store.on(["experiment", "points", "rounds"], () => draw(store, box, pick));
}

// Treatment minus baseline, as the answer has it: one sign on the whole page.
function offer(store, pick) {
  const { pair } = store.experiment.answer || {};
  const named = pair ? [store.arms.indexOf(pair.a), store.arms.indexOf(pair.b)] : null;
  if (pick.dataset.isChosen || pick.dataset.pairs === String(named)) return;
  pick.dataset.pairs = String(named);
  const pairs = store.arms.flatMap((_, i) => store.arms.slice(0, i).map((__, j) => [i, j]));
  const isNamed = ([i, j]) => named && named.includes(i) && named.includes(j);
  const all = named ? [named, ...pairs.filter((one) => !isNamed(one))] : pairs;
  pick.replaceChildren(
    ...all.map(([i, j]) => element("option", { value: `${i} ${j}` }, `${store.arms[i]} − ${store.arms[j]}`)),
  );
  pick.parentElement.hidden = pick.options.length < 2;
}

const widthOf = (box) => Math.min(720, Math.max(280, box.clientWidth || 460));

function draw(store, box, pick) {
  width = widthOf(box);
  fill(store, box, pick);
  document.getElementById("difference-svg").hidden = !box.querySelector("svg");
}

function fill(store, box, pick) {
  const { looks } = store.experiment.spec.analysis || {};
  if (looks && looks.mode === "planned" && !store.isOver) {
    box.replaceChildren(
      element(
        "p",
        { class: "empty" },
        `Shown when it ends: looks are registered at ${looks.at.join(", ")} replicates, and between them nothing is shown.`,
      ),
    );
    return;
  }
  const [a, b] = (pick.value || "1 0").split(" ").map(Number);
  const metric = store.leading;
  const rows = differences(store, metric, a, b);
  if (!rows.length) {
    box.replaceChildren(element("p", { class: "empty" }, "No round of any replicate is complete yet."));
    return;
  }
  const { sesoi } = store.experiment.spec.analysis || {};
  const same = metric === store.experiment.shown.primary;
  box.replaceChildren(plot(store, rows, same ? sesoi : null, [a, b]), caption(store, rows, metric, same, [a, b]));
}

// [{replicate, status, path: differences by round, last}] for every replicate in which both arms have a common round.
export function differences(store, metric, a, b) {
  const byReplicate = new Map();
  for (const line of store.lines(metric)) {
    const key = line.run.replicate;
    byReplicate.set(key, { ...(byReplicate.get(key) || {}), [line.arm]: line });
  }
  return [...byReplicate]
    .map(([replicate, lines]) => {
      if (!lines[a] || !lines[b]) return null;
      const other = new Map(lines[b].points.map((point) => [point.round, point.value]));
      const path = lines[a].points
        .filter((point) => other.has(point.round) && point.value !== null && other.get(point.round) !== null)
        .map((point) => point.value - other.get(point.round))
        .filter(Number.isFinite);
      const hasDiverged = diverges(lines[a].run) || diverges(lines[b].run);
      return path.length
        ? { replicate, status: lines[a].run.status, hasDiverged, path, last: path[path.length - 1] }
        : null;
    })
    .filter(Boolean)
    .sort((x, y) => x.replicate - y.replicate);
}

function plot(store, rows, sesoi, [a, b]) {
  const height = (rows.length + 1) * ROW + 8;
  const values = rows.map((row) => row.last);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const half = halfWidth(values);
  const inner = scaleOf([...values, mean - (half || 0), mean + (half || 0)], width - LEFT - RIGHT, sesoi);
  const x = (value) => LEFT + inner(value);
  const texts = aligned([...values, mean]);
  const [left, right] = [`← ${short(store.arms[b])} higher`, `${short(store.arms[a])} higher →`];
  const isTight = (left.length + right.length) * LETTER > width - LEFT - RIGHT;
  const told = `${store.arms[a]} minus ${store.arms[b]}: mean ${signed(mean)} over ${values.length} replicates`;
  return mark(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${height + 18 + (isTight ? 16 : 0)}`, role: "img", "aria-label": told },
    mark("title", {}, told),
    ...ground(x, height, sesoi),
    ...rows.flatMap((row, index) => replicate({ ...row, told: texts[index] }, index, x)),
    ...mark_mean(mean, half, rows.length, x, texts[rows.length]),
    mark("text", { class: "soft", x: LEFT, y: height + 14 }, left),
    mark("text", { class: "soft", x: width - RIGHT, y: height + (isTight ? 30 : 14), "text-anchor": "end" }, right),
  );
}

function replicate(row, index, x) {
  const y = index * ROW + ROW / 2 + 4;
  const trail = row.path.slice(-TRAIL - 1, -1);
  const training = row.status === "running";
  const state = row.hasDiverged ? ", before an arm diverged" : training ? ", training" : "";
  return [
    mark("text", { class: "soft", x: 0, y: y + 4 }, `replicate ${row.replicate}`),
    trail.length
      ? mark("line", {
          class: "trail",
          x1: x(Math.min(...trail, row.last)),
          x2: x(Math.max(...trail, row.last)),
          y1: y,
          y2: y,
        })
      : null,
    mark(
      "circle",
      { class: "dot", cx: x(row.last), cy: y, r: 4.5, "fill-opacity": state ? 0.5 : 1 },
      mark("title", {}, `replicate ${row.replicate}: ${signed(row.last)}${state}`),
    ),
    mark("text", { x: width, y: y + 4, "text-anchor": "end" }, row.told),
  ].filter(Boolean);
}

function mark_mean(mean, half, count, x, told) {
  const y = count * ROW + ROW / 2 + 6;
  return [
    mark("text", { x: 0, y: y + 4, "font-weight": "600" }, "mean"),
    half === null ? null : mark("line", { class: "mean", x1: x(mean - half), x2: x(mean + half), y1: y, y2: y }),
    mark("rect", { x: x(mean) - 4, y: y - 4, width: 8, height: 8, fill: "currentColor" }),
    mark("text", { x: width, y: y + 4, "text-anchor": "end", "font-weight": "600" }, told),
  ].filter(Boolean);
}

function caption(store, rows, metric, same, pair) {
  const planned = (store.experiment.spec.analysis || {}).replicates;
  const number_ = planned ? planned.planned : store.experiment.progress.blocks;
  const kept = store.isOver
    ? ""
    : ` Descriptive: ${rows.length} of ${number_} replicates, each at its newest round; no verdict before the registered end.`;
  const band = same
    ? "The band is the smallest effect of interest."
    : `${metric} stands in until the first evaluation of ${store.experiment.shown.primary}.`;
  return element(
    "p",
    { class: "note" },
    element("strong", {}, divergence(store, pair)),
    `Each dot is one replicate, its trail the rounds before; the mean with its 95 % t interval.${kept} ${band}`,
  );
}

export function table(store, box, metric) {
  const rows = store.arms.map((label, arm) => {
    const last = store
      .lines(metric)
      .filter((line) => line.arm === arm)
      .map((line) => line.points[line.points.length - 1].value)
      .filter(Number.isFinite);
    const mean = last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
    return element(
      "tr",
      { "data-arm": label },
      element("td", {}, armName(label, arm)),
      element("td", { class: "number score" }, number(mean)),
      element("td", { class: "number" }, String(last.length)),
    );
  });
  box.tBodies[0].replaceChildren(...rows);
  document.getElementById("score-name").textContent = metric;
}
