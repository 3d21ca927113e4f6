// Workers: device, state, health, what each one trains; drain and clear.

import { all, badge, base, call, duration, element, say } from "./api.js";
import { replaceRows } from "./panels/order.js";

const node = (name) => document.getElementById(name);

function holds(worker) {
  if (!worker.holds) return "";
  const { progress, experiment_id, replicate } = worker.holds;
  const where = progress && progress.round !== undefined ? `, round ${progress.round}` : "";
  return element("a", { href: `${base}/experiments/${experiment_id}` }, `replicate ${replicate}${where}`);
}

function defect(plugin) {
  return element(
    "p",
    { class: "defect" },
    `${plugin.kind} `,
    element("bdi", {}, plugin.name),
    ` cannot be used: ${plugin.reason}`,
  );
}

function button(worker) {
  const act = (path, body, text) =>
    element(
      "button",
      {
        onclick: async () => {
          try {
            await call("POST", `workers/${worker.id}/${path}`, body);
            await refresh();
          } catch (error) {
            say(error);
          }
        },
      },
      text,
    );
  if (worker.status === "quarantined") return act("clear", {}, "Clear");
  return worker.drain ? "draining" : act("drain", { now: false }, "Drain");
}

function memory(worker) {
  if (!worker.health.memory_used_bytes) return "";
  const used = worker.health.memory_used_bytes / 2 ** 30,
    all = worker.memory_bytes / 2 ** 30;
  return element(
    "span",
    {},
    `${used.toFixed(1)} of ${all.toFixed(0)} GiB `,
    element("progress", { max: all, value: used, "aria-label": "memory in use" }),
  );
}

async function refresh() {
  const { items } = await all("workers");
  replaceRows(
    node("workers").tBodies[0],
    items.map((worker) =>
      element(
        "tr",
        { "data-id": worker.id },
        element("td", { "data-name": "" }, element("bdi", {}, worker.name)),
        element("td", { "data-name": "" }, worker.device_class, element("br"), element("code", {}, worker.device_uid)),
        element(
          "td",
          { "data-name": "" },
          badge(worker.status),
          " ",
          worker.status_text || "",
          ...worker.defects.map(defect),
        ),
        element("td", { "data-name": "Trains" }, holds(worker)),
        element("td", { class: "number", "data-name": "Memory" }, memory(worker)),
        element("td", { "data-name": "Seen" }, `${duration(worker.seen_seconds_ago)} ago`),
        element("td", {}, button(worker)),
      ),
    ),
  );
  node("empty").hidden = items.length > 0;
}

refresh().catch(say);
setInterval(() => {
  if (!document.hidden) refresh().catch(say);
}, 3000);
