// What a chart shows, drawn anew as one SVG that carries its colours and needs no style sheet.

import { mark, number } from "./api.js";

const SIZE = { width: 960, height: 480, left: 72, right: 16, top: 28, bottom: 40 };

export function drawing(seen) {
  const { width, height, left, right, top, bottom } = SIZE;
  const style = getComputedStyle(document.body);
  const ink = style.color,
    line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
  const values = seen.data
    .slice(1)
    .flatMap((column) => [...column])
    .filter((value) => value !== null && Number.isFinite(value));
  const [first, last] = [seen.xs[0] ?? 0, seen.xs[seen.xs.length - 1] ?? 1];
  const along = scale([first, last], [left, width - right], false);
  const up = scale([Math.min(...values), Math.max(...values)], [height - bottom, top], Boolean(seen.log));
  const told = `${seen.metric} over ${seen.axis}: ${seen.series
    .map((one) => one.label)
    .filter(Boolean)
    .join(", ")}`;
  const path = (index) => pathOf(seen.xs, seen.data[index], along, up);
  return mark(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      "font-family": "system-ui, sans-serif",
      "font-size": 12,
      fill: ink,
    },
    mark("title", {}, told),
    mark("rect", { width, height, fill: style.backgroundColor }),
    ...ticks(up.low, up.high, seen.log).flatMap((value) => [
      mark("line", { x1: left, x2: width - right, y1: up(value), y2: up(value), stroke: line }),
      mark("text", { x: left - 8, y: up(value) + 4, "text-anchor": "end" }, number(value)),
    ]),
    ...(seen.axis === "time" ? [first, last] : ticks(first, last, false)).map((value) =>
      mark(
        "text",
        { x: along(value), y: height - bottom + 18, "text-anchor": "middle" },
        seen.axis === "time" ? new Date(1000 * value).toLocaleTimeString() : number(value),
      ),
    ),
    mark("text", { x: left, y: 16, "font-weight": 600 }, seen.metric),
    mark("text", { x: width - right, y: height - 6, "text-anchor": "end" }, seen.axis),
    ...seen.bands.map((band) =>
      mark("path", { d: bandOf(seen, band, along, up), ...colour(band.fill, "fill"), stroke: "none" }),
    ),
    ...seen.series.flatMap((one, index) =>
      one.label && one.stroke
        ? [
            mark(
              "path",
              {
                d: path(index),
                fill: "none",
                ...colour(one.stroke, "stroke"),
                "stroke-width": one.width,
                "stroke-dasharray": one.dash ? one.dash.join(" ") : null,
              },
              mark("title", {}, one.label),
            ),
          ]
        : [],
    ),
    ...key(seen),
  );
}

// Programs that read SVG know #rrggbb and an opacity, not always #rrggbbaa.
function colour(text, property) {
  const [solid, alpha] = [text.slice(0, 7), text.slice(7)];
  return { [property]: solid, [`${property}-opacity`]: alpha ? (parseInt(alpha, 16) / 255).toFixed(2) : null };
}

function key(seen) {
  const named = seen.series.filter((one) => one.isMean && one.label);
  const step = (SIZE.width - SIZE.left - 160) / Math.max(1, named.length);
  return named.flatMap((one, index) => {
    const x = SIZE.left + 160 + index * step;
    return [
      mark("line", {
        x1: x,
        x2: x + 24,
        y1: 12,
        y2: 12,
        ...colour(one.stroke, "stroke"),
        "stroke-width": 2.5,
        "stroke-dasharray": one.dash ? one.dash.join(" ") : null,
      }),
      mark("text", { x: x + 30, y: 16 }, one.label),
    ];
  });
}

function scale([least, most], [from, to], log) {
  const low = least === most ? least - 0.5 : least,
    high = least === most ? most + 0.5 : most;
  const at = log ? Math.log : (value) => value;
  const [a, b] = [at(low), at(high)];
  const place = (value) => from + ((at(value) - a) / (b - a)) * (to - from);
  return Object.assign(place, { low, high });
}

function ticks(low, high, log) {
  if (log)
    return [...Array(40).keys()].map((power) => 10 ** (power - 20)).filter((value) => value >= low && value <= high);
  const rough = (high - low) / 6,
    size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * size).find((one) => one >= rough);
  const start = Math.ceil(low / step);
  return [...Array(Math.max(0, Math.floor(high / step) - start + 1)).keys()].map((index) =>
    Number(((start + index) * step).toPrecision(12)),
  );
}

function pathOf(xs, column, along, up) {
  return [...xs]
    .flatMap((x, row) => (seenAt(column, row) ? [`${along(x).toFixed(1)} ${up(column[row]).toFixed(1)}`] : []))
    .map((point, index) => `${index ? "L" : "M"}${point}`)
    .join(" ");
}

function bandOf(seen, band, along, up) {
  const [upper, lower] = band.series.map((index) => seen.data[index]);
  const rows = [...seen.xs.keys()].filter((row) => seenAt(upper, row) && seenAt(lower, row));
  const there = rows.map((row) => `${along(seen.xs[row]).toFixed(1)} ${up(upper[row]).toFixed(1)}`);
  const back = rows.reverse().map((row) => `${along(seen.xs[row]).toFixed(1)} ${up(lower[row]).toFixed(1)}`);
  return there.length ? `M${[...there, ...back].join(" L")} Z` : "";
}

function seenAt(column, row) {
  return column[row] !== null && column[row] !== undefined && Number.isFinite(column[row]);
}
