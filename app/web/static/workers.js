// Workers: device, state, health, what each one holds; drain and clear.

import { badge, base, call, element, say } from "./api.js";

function holds(worker) {
  if (!worker.holds) return "";
  const where = worker.holds.progress && worker.holds.progress.round !== undefined ? `, round ${worker.holds.progress.round}` : "";
  return element("a", { href: `${base}/experiments/${worker.holds.experiment_id}` }, `replicate ${worker.holds.replicate}${where}`);
}

function defect(plugin) {
  return element("p", { class: "defect" }, `${plugin.kind} `, element("bdi", {}, plugin.name), ` cannot be used: ${plugin.reason}`);
}

function button(worker) {
  const act = (path, body, text) => element("button", { onclick: async () => {
    try { await call("POST", `workers/${worker.id}/${path}`, body); await refresh(); } catch (error) { say(error); }
  } }, text);
  if (worker.status === "quarantined") return act("clear", {}, "Clear");
  return worker.drain ? "draining" : act("drain", { now: false }, "Drain");
}

async function refresh() {
  const { items } = await call("GET", "workers");
  document.getElementById("workers").tBodies[0].replaceChildren(...items.map((worker) => element("tr", {},
    element("td", {}, element("bdi", {}, worker.name)), element("td", {}, worker.device_class, element("br"), element("code", {}, worker.device_uid)),
    element("td", {}, badge(worker.status), " ", worker.status_text || "", ...worker.defects.map(defect)), element("td", {}, holds(worker)),
    element("td", {}, worker.health.memory_used_bytes ? `${(worker.health.memory_used_bytes / 2 ** 30).toFixed(1)} GiB` : ""),
    element("td", {}, `${worker.seen_seconds_ago} s ago`), element("td", {}, button(worker)))));
}

refresh().catch(say);
setInterval(() => { if (!document.hidden) refresh().catch(say); }, 3000);
