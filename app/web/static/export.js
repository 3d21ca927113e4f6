// Charts as files: what is seen as CSV, PNG or SVG. An SVG carries its colours and stands alone on white or dark paper.

import { element, mark } from "./api.js";
import { drawing } from "./picture.js";

const STYLED = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "font-size",
  "font-weight",
  "text-anchor",
];

function save(name, url) {
  element("a", { href: url, download: name }).click();
}

function fileName(text, ending) {
  return `${text.replaceAll(/[/\s]+/g, "-")}.${ending}`;
}

// `seen`: {metric, axis, xs, series: [{label, stroke, width, dash}], data: columns, bands, log}.
export function saveCsv(prefix, seen) {
  const named = seen.series.map((one, index) => [one.label, index]).filter(([label]) => label);
  const lines = [
    [seen.axis, ...named.map(([label]) => label)],
    ...[...seen.xs].map((x, row) => [x, ...named.map(([, index]) => seen.data[index][row] ?? "")]),
  ];
  const text = lines.map((line) => line.map(cell).join(",")).join("\n");
  save(fileName(`${prefix}-${seen.metric}`, "csv"), URL.createObjectURL(new Blob([text], { type: "text/csv" })));
}

// A name that a spreadsheet would take for a formula is quoted with a mark before it.
function cell(value) {
  const text = typeof value === "string" && /^[=+\-@\t]/.test(value) ? `'${value}` : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function savePng(seen, plot) {
  plot.ctx.canvas.toBlob((blob) => save(fileName(seen.metric, "png"), URL.createObjectURL(blob)));
}

export function saveSvg(seen) {
  saveDrawing(drawing(seen), seen.metric);
}

// An SVG of the page: what its style sheet says is written into it.
export function saveShown(svg, name) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((one, index) => {
    const style = getComputedStyle(one);
    for (const property of STYLED) to[index].setAttribute(property, style.getPropertyValue(property));
    to[index].removeAttribute("class");
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("font-family", "system-ui, sans-serif");
  copy.prepend(mark("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
  saveDrawing(copy, name);
}

function saveDrawing(svg, name) {
  const text = new XMLSerializer().serializeToString(svg);
  save(fileName(name, "svg"), URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })));
}
