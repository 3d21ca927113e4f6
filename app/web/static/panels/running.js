// Rows of the queue page: the name of an experiment, and what runs of it.

import { base, duration, element, replicates } from "../api.js";

export function named(item) {
  return element(
    "td",
    { "data-name": "" },
    element("a", { href: `${base}/experiments/${item.id}` }, element("bdi", {}, item.name || item.id)),
    ...item.tags.map((tag) => element("bdi", { class: "tag" }, tag)),
  );
}

export function runningRow(item) {
  return element(
    "tr",
    { "data-id": item.id },
    named(item),
    element("td", { "data-name": "" }, replicates(item.replicates)),
    element("td", { class: "number", "data-name": "Workers" }, String(item.workers)),
    element(
      "td",
      { class: "once", "data-name": "Left" },
      item.seconds_left === null ? "unknown" : `about ${duration(item.seconds_left)}`,
    ),
    element("td", { "data-name": "Owner" }, element("bdi", {}, item.owner)),
    element("td", { class: "number", "data-name": "Priority" }, String(item.priority)),
  );
}
