// Intervals against zero and the band of the smallest effect of interest, as SVG.

import { aligned, difference, mark, number, short } from "./api.js";

export function scaleOf(values, width, sesoi) {
  const reach = Math.max(1e-9, ...values.filter(Number.isFinite).map(Math.abs), 1.4 * (sesoi || 0)) * 1.08;
  return (value) => width / 2 + (Math.max(-reach, Math.min(reach, value)) / reach) * (width / 2 - 8);
}

export function ground(x, height, sesoi) {
  const parts = [];
  if (sesoi) parts.push(mark("rect", { class: "sesoi", x: x(-sesoi), y: 0, width: x(sesoi) - x(-sesoi), height }));
  parts.push(mark("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: height }));
  return parts;
}

function endsOf(bounds) {
  return bounds.map((end, index) => end ?? (index ? Infinity : -Infinity));
}

// Both intervals of a difference, each with its level and what it decides.
export function spans(pair) {
  return [
    ["ci_superiority", 1, "whether there is a difference"],
    ["ci_equivalence", 2, "whether it matters"],
  ]
    .filter(([key]) => pair[key])
    .map(([key, sides, decides]) => `${spanOf(pair[key], sides * pair.alpha_used)} (${decides})`);
}

export function levelOf(alpha) {
  return `${Number((100 * (1 - alpha)).toPrecision(3))}\u00a0%\u00a0CI`;
}

function spanOf(bounds, alpha) {
  return `${levelOf(alpha)} ${aligned(endsOf(bounds)).join(" to ")}`;
}

// One interval in one line; `answer` is what the API calls so, `among` other values that the scale must hold.
export function interval(answer, { width = 320, height = 28, words = true, among = [] } = {}) {
  const { pair, sesoi, unit } = answer;
  if (!pair) return null;
  const ends = endsOf(pair.ci_superiority || [pair.estimate, pair.estimate]);
  const x = scaleOf([...ends, pair.estimate, ...among], width, sesoi);
  const told = `${pair.a} minus ${pair.b}: ${[difference(pair.estimate, unit), ...spans(pair)].join(", ")}, band ±${number(sesoi)}`;
  const inner = pair.ci_equivalence && endsOf(pair.ci_equivalence);
  const middle = height / 2;
  const most = Math.floor(width / 14) - 8; // letters of 7 px in half of the width, beside "better"
  return mark(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${height + (words ? 16 : 0)}`, role: "img", "aria-label": told },
    mark("title", {}, told),
    ...ground(x, height, sesoi),
    mark("line", { class: "mean", x1: x(ends[0]), x2: x(ends[1]), y1: middle, y2: middle }),
    inner ? mark("line", { class: "mean inner", x1: x(inner[0]), x2: x(inner[1]), y1: middle, y2: middle }) : null,
    mark("circle", { class: "dot", cx: x(pair.estimate), cy: middle, r: 5 }),
    words ? mark("text", { class: "soft", x: 0, y: height + 13 }, `${short(pair.b, most)} better`) : null,
    words ? mark("text", { class: "soft", x: width, y: height + 13, "text-anchor": "end" }, `${short(pair.a, most)} better`) : null,
  );
}

// Half width of a 95 % interval of a mean, by Student's t; null below two values.
export function halfWidth(values) {
  const n = values.length;
  if (n < 2) return null;
  const mean = values.reduce((a, b) => a + b, 0) / n;
  const sd = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1));
  return (T[Math.min(n - 2, T.length - 1)] * sd) / Math.sqrt(n);
}

// 97.5 % quantiles of Student's t for 1, 2, .. degrees of freedom.
const T = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
  2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 1.96,
];
