// The queue: a row an experiment, what waits and why; order among equals by drag or Alt and arrows.

import { all, base, call, element, replicates, say } from "./api.js";

const node = (name) => document.getElementById(name);
let paused = false;
let order = [];

async function refresh() {
  const found = await all("queue");
  ({ paused } = found);
  node("queue-state").hidden = !paused;
  node("queue-toggle").textContent = paused ? "Resume queue" : "Pause queue";
  const groups = new Map();
  for (const item of found.items) groups.set(item.experiment_id, [...(groups.get(item.experiment_id) || []), item]);
  order = [...groups].map(([id, items]) => ({ id, priority: items[0].priority, owner: items[0].owner }));
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
  node("queue").tBodies[0].replaceChildren(...[...groups].map(row));
  node("empty").hidden = groups.size > 0;
  if (focused) document.querySelector(`tr[data-id="${CSS.escape(focused)}"]`)?.focus();
}

function row([id, items]) {
  const [first] = items;
  return element("tr", {
    "data-id": id, tabindex: "0", draggable: "true",
    ondragstart: (event) => event.dataTransfer.setData("text/plain", id), ondragover: (event) => event.preventDefault(),
    ondrop: (event) => { event.preventDefault(); move(event.dataTransfer.getData("text/plain"), id); },
    onkeydown: (event) => { if (event.altKey && ["ArrowUp", "ArrowDown"].includes(event.key)) { event.preventDefault(); step(id, event.key === "ArrowUp" ? -1 : 1); } },
  },
  element("td", { "data-name": "" }, element("a", { href: `${base}/experiments/${id}` }, element("bdi", {}, first.name || id))), element("td", { "data-name": "" }, replicates(items.map((item) => item.replicate))),
  element("td", { "data-name": "Why" }, first.why_waiting ? first.why_waiting.text : ""), element("td", { "data-name": "Owner" }, element("bdi", {}, first.owner)),
  element("td", { class: "number", "data-name": "Priority" }, String(first.priority)),
  element("td", {}, element("button", { "aria-label": "earlier", onclick: () => step(id, -1) }, "↑"), " ", element("button", { "aria-label": "later", onclick: () => step(id, 1) }, "↓")));
}

function step(id, by) {
  const at = order.findIndex((item) => item.id === id);
  const other = order[at + by];
  if (other) move(by < 0 ? id : other.id, by < 0 ? other.id : id);
}

// Put one before another; the server refuses what is not among equals.
async function move(id, before) {
  if (id === before) return;
  try { await call("POST", `experiments/${id}/reorder`, { before }); await refresh(); } catch (error) { say(error); }
}

node("queue-toggle").addEventListener("click", async () => {
  try { await call("POST", `queue/${paused ? "resume" : "pause"}`); await refresh(); } catch (error) { say(error); }
});
refresh().catch(say);
setInterval(() => { if (!document.hidden) refresh().catch(say); }, 5000);
