// What a plan would find: the chance that the better arm is named, over the true effect, for every assumed SD.

import { element, mark, number } from "../api.js";

const HEIGHT = 220,
  LEFT = 40,
  RIGHT = 84,
  TOP = 8,
  BOTTOM = 34;
let width = 460; // of the box: letters of a picture are as large as those beside it
const DASHES = [null, "8 4", "2 3"];

export function powerLine(row) {
  const given = assumption(row);
  if (row.power === null) return `${given}: ${row.replicates} replicates cannot reach the level`;
  const { plugin, upper80 } = row.needed || {};
  const most = plugin === upper80 ? "" : ` to ${upper80 || "more than 300"}`;
  return `${given}: power ${row.power.toFixed(2)} at ${row.replicates} replicates; 80 % takes ${plugin ? `${plugin}${most}` : "more than 300"}`;
}

function assumption(row) {
  return row.sd === null ? `with the pilot's ${row.pilot_size} blocks` : `if the SD is ${number(row.sd)}`;
}

export function draw(box, rows, sesoi) {
  const drawn = rows.filter((row) => row.curve.length > 1);
  width = Math.min(720, Math.max(280, box.clientWidth || 460));
  box.replaceChildren(...(drawn.length ? [chart(drawn, sesoi), caption(drawn), data(drawn)] : []));
}

function chart(rows, sesoi) {
  const most = Math.max(...rows.flatMap((row) => row.curve.map((point) => point.effect)));
  const x = (effect) => LEFT + (effect / most) * (width - LEFT - RIGHT),
    y = (power) => TOP + (1 - power) * (HEIGHT - TOP - BOTTOM);
  const told = `power over the true effect: ${rows.map(powerLine).join("; ")}`;
  return mark(
    "svg",
    { class: "plot", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": told },
    mark("title", {}, told),
    ...[0, 0.5, 0.8, 1].flatMap((power) => [
      mark("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(power), y2: y(power) }),
      mark("text", { class: "soft", x: LEFT - 6, y: y(power) + 4, "text-anchor": "end" }, `${100 * power} %`),
    ]),
    sesoi && sesoi <= most
      ? mark("line", { class: "zero", x1: x(sesoi), x2: x(sesoi), y1: TOP, y2: HEIGHT - BOTTOM })
      : null,
    sesoi && sesoi <= most
      ? mark("text", { x: x(sesoi), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, number(sesoi))
      : null,
    ...rows.flatMap((row, index) => line(row, DASHES[index % 3], x, y)),
    ...ends(rows, x, y),
    mark("text", { class: "soft", x: LEFT, y: HEIGHT - BOTTOM + 14 }, "0"),
    mark("text", { class: "soft", x: width - RIGHT, y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, number(most)),
    mark(
      "text",
      { class: "soft", x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 2, "text-anchor": "middle" },
      "true effect",
    ),
  );
}

function line(row, dash, x, y) {
  const path = row.curve.map((point, index) => `${index ? "L" : "M"}${x(point.effect)} ${y(point.power)}`).join(" ");
  return [
    mark("path", { class: "mean", d: path, fill: "none", "stroke-dasharray": dash }),
    ...row.curve.map((point) =>
      mark(
        "circle",
        { class: "dot", cx: x(point.effect), cy: y(point.power), r: 3 },
        mark("title", {}, `true effect ${number(point.effect)}: ${point.power.toFixed(2)}`),
      ),
    ),
  ];
}

// The names of the lines at their ends, pushed apart where they would lie on each other.
function ends(rows, x, y) {
  const last = rows.map((row) => ({
    text: row.sd === null ? "pilot" : `SD ${number(row.sd)}`,
    ...row.curve[row.curve.length - 1],
  }));
  let free = 0;
  return last
    .sort((a, b) => b.power - a.power)
    .map((end) => {
      free = Math.max(free, y(end.power) + 4);
      const text = mark("text", { x: x(end.effect) + 10, y: free }, end.text);
      free += 14;
      return text;
    });
}

function caption(rows) {
  const guess =
    rows.length > 1
      ? " Nothing is known of the spread yet, so half, once and twice the smallest effect of interest are tried; analysis.pilot or pilot_sd replaces the guess."
      : "";
  return element(
    "p",
    { class: "note" },
    `Chance that the better arm is named at ${rows[0].replicates} replicates; the vertical line is the smallest effect of interest.${guess}`,
  );
}

function data(rows) {
  return element(
    "details",
    {},
    element("summary", {}, "Data"),
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          element("th", {}, "True effect"),
          ...rows.map((row) => element("th", { class: "number" }, row.sd === null ? "pilot" : `SD ${number(row.sd)}`)),
        ),
      ),
      element(
        "tbody",
        {},
        ...rows[0].curve.map((point, index) =>
          element(
            "tr",
            {},
            element("td", {}, number(point.effect)),
            ...rows.map((row) => element("td", { class: "number" }, row.curve[index].power.toFixed(2))),
          ),
        ),
      ),
    ),
  );
}
