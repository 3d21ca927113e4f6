// Every reported estimate of several experiments as one forest plot; experiments without a report say why.

import { aligned, difference, element, number, prose } from "../api.js";
import { interval, levelOf } from "../forest.js";

function metricOf({ experiment }) {
  return experiment.shown.primary;
}

// Pairs whose estimate the report holds; before a registered look there is none.
function pairs({ report, experiment }) {
  if (!report) return [];
  const { sesoi, unit, estimand } = experiment.answer;
  const { control } = report.registration.analysis;
  return report.comparisons
    .filter((pair) => pair.inference && pair.estimate !== null)
    .map((pair) => ({ pair: pair.b === control ? pair : turned(pair), sesoi, unit, estimand }));
}

// Treatment minus baseline; a report holds the arm first that comes first in the specification.
function turned(pair) {
  const around = (bounds) => bounds && bounds.map((end) => (end === null ? null : -end)).reverse();
  return {
    ...pair,
    a: pair.b,
    b: pair.a,
    estimate: -pair.estimate,
    ci_superiority: around(pair.ci_superiority),
    ci_equivalence: around(pair.ci_equivalence),
  };
}

export function draw(compared, table, note) {
  const found = compared.map((one) => ({ one, own: pairs(one) }));
  const scales = new Map();
  for (const { one, own } of found) {
    const values = own.flatMap(({ pair }) => [pair.estimate, ...(pair.ci_superiority || [])]).filter(Number.isFinite);
    const key = metricOf(one);
    scales.set(key, [...(scales.get(key) || []), ...values, 1.4 * (own.length ? own[0].sesoi || 0 : 0)]);
  }
  note.textContent =
    scales.size > 1
      ? `${scales.size} metrics, each on a scale of its own. Treatment minus baseline; positive: the treatment is better.`
      : `All on one scale, ${[...scales.keys()].join("")}. Treatment minus baseline; positive: the treatment is better.`;
  table.tBodies[0].replaceChildren(
    ...found.flatMap(({ one, own }) =>
      own.length ? own.map((item) => row(one, item, scales.get(metricOf(one)))) : [none(one)],
    ),
  );
}

function row({ experiment }, item, among) {
  const { pair, unit } = item;
  const [low, high] = ends(pair);
  return element(
    "tr",
    {},
    element("td", { "data-name": "" }, element("bdi", {}, experiment.name)),
    element("td", { "data-name": "" }, element("bdi", {}, pair.a), " − ", element("bdi", {}, pair.b)),
    element("td", { class: "number", "data-name": "Estimate" }, difference(pair.estimate, unit)),
    element("td", { class: "number", "data-name": "Interval" }, `${levelOf(pair.alpha_used)} ${aligned([low, high]).join(" to ")}`),
    element("td", { class: "wide", "data-name": "" }, interval(item, { among, height: 20, words: false })),
  );
}

function ends(pair) {
  const [low, high] = pair.ci_superiority || [null, null];
  return [low ?? -Infinity, high ?? Infinity];
}

function none({ experiment }) {
  const { blocks, blocks_by_status: by } = experiment.progress;
  const why = experiment.answer
    ? prose(experiment.answer.sentence)
    : [
        `No estimate before the registered end: ${number(by.succeeded || 0)} of ${number(blocks)} replicates have ended.`,
      ];
  return element(
    "tr",
    {},
    element("td", { "data-name": "" }, element("bdi", {}, experiment.name)),
    element("td", { colspan: "4", class: "soft", "data-name": "" }, ...why),
  );
}
