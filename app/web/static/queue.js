// The queue: a row an experiment, what waits, why and until when; what runs; order among equals by drag or keys.

import { all, call, duration, element, replicates, say } from "./api.js";
import * as choice from "./panels/choice.js";
import * as order from "./panels/order.js";
import { named, runningRow } from "./panels/running.js";
import * as views from "./panels/views.js";
import { repeat } from "./repeat.js";

const node = (name) => document.getElementById(name);
const filters = node("filters");
const state = { paused: false, waiting: [], running: [], sort: "", sortRunning: "" };
const KEYS = {
  name: (item) => item.name.toLowerCase(),
  waits: (item) => item.replicates.length,
  why: (item) => item.why,
  start: (item) => item.starts ?? Infinity,
  running: (item) => item.replicates.length,
  workers: (item) => item.workers,
  left: (item) => item.seconds_left ?? Infinity,
  owner: (item) => item.owner.toLowerCase(),
  priority: (item) => item.priority,
};

function address() {
  const query = new URLSearchParams([...new FormData(filters)].filter(([, value]) => value));
  if (state.sort) query.set("sort", state.sort);
  if (state.sortRunning) query.set("running", state.sortRunning);
  return query.toString();
}

function fits(item) {
  const { q, owner, tag } = Object.fromEntries(new FormData(filters));
  const named = !q || item.name.toLowerCase().includes(q.toLowerCase()) || item.id === q;
  return named && (!owner || item.owner === owner) && (!tag || item.tags.includes(tag));
}

async function refresh() {
  const found = await all("queue");
  const groups = new Map();
  for (const item of found.items) groups.set(item.experiment_id, [...(groups.get(item.experiment_id) || []), item]);
  state.paused = found.paused;
  state.waiting = [...groups].map(([id, items]) => ({
    id,
    name: items[0].name,
    tags: items[0].tags,
    owner: items[0].owner,
    priority: items[0].priority,
    status: "queued",
    replicates: items.map((item) => item.replicate),
    starts: items[0].starts_in_seconds,
    why: items[0].why_waiting.text,
  }));
  state.running = found.running.map((item) => ({ ...item, id: item.experiment_id }));
  draw();
}

function draw() {
  node("queue-state").hidden = !state.paused;
  node("queue-toggle").textContent = state.paused ? "Resume queue" : "Pause queue";
  const waiting = order.sorted(state.waiting.filter(fits), KEYS, state.sort);
  order.replaceRows(node("queue").tBodies[0], waiting.map(row));
  const running = order.sorted(state.running.filter(fits), KEYS, state.sortRunning);
  order.replaceRows(node("running").tBodies[0], running.map(runningRow));
  node("queue").hidden = waiting.length === 0;
  node("empty").hidden = state.waiting.length > 0;
  node("none").hidden = waiting.length > 0 || state.waiting.length === 0;
  node("running").hidden = running.length === 0;
  node("idle").hidden = !node("running").hidden;
  order.shown(node("queue"), state.sort);
  order.shown(node("running"), state.sortRunning);
  choice.shown(waiting);
  views.suggest([...state.waiting, ...state.running]);
  history.replaceState(null, "", address() ? `?${address()}` : location.pathname);
  views.shown(address());
}

function start(item) {
  if (state.paused) return "paused";
  if (item.starts === null)
    return element("span", { class: "soft", title: "no rate is measured yet of what it waits for" }, "unknown");
  if (item.starts < 2) return "now";
  const at = new Date(Date.now() + 1000 * item.starts);
  return element(
    "time",
    { datetime: at.toISOString(), title: at.toLocaleString() },
    `in about ${duration(item.starts)}`,
  );
}

function row(item) {
  const { id } = item;
  const free = !state.sort;
  return element(
    "tr",
    {
      "data-id": id,
      tabindex: "0",
      draggable: String(free),
      ondragstart: (event) => event.dataTransfer.setData("text/plain", id),
      ondragover: (event) => event.preventDefault(),
      ondrop: (event) => {
        event.preventDefault();
        move(event.dataTransfer.getData("text/plain"), id);
      },
      onkeydown: (event) => {
        if (event.altKey && ["ArrowUp", "ArrowDown"].includes(event.key)) {
          event.preventDefault();
          step(id, event.key === "ArrowUp" ? -1 : 1);
        }
      },
    },
    element("td", { class: "pick", "data-name": "" }, choice.box(item)),
    named(item),
    element("td", { "data-name": "" }, replicates(item.replicates)),
    element("td", { "data-name": "Why" }, item.why),
    element("td", { class: "once", "data-name": "Starts" }, start(item)),
    element("td", { "data-name": "Owner" }, element("bdi", {}, item.owner)),
    element("td", { class: "number", "data-name": "Priority" }, String(item.priority)),
    element(
      "td",
      { class: "once", "data-name": "" },
      element("button", { "aria-label": `${item.name} earlier`, disabled: !free, onclick: () => step(id, -1) }, "↑"),
      " ",
      element("button", { "aria-label": `${item.name} later`, disabled: !free, onclick: () => step(id, 1) }, "↓"),
    ),
  );
}

function step(id, by) {
  const at = state.waiting.findIndex((item) => item.id === id);
  const other = state.waiting[at + by];
  if (other && !state.sort) move(by < 0 ? id : other.id, by < 0 ? other.id : id);
}

// Put one before another; the server refuses what is not among equals.
async function move(id, before) {
  if (id === before) return;
  try {
    await call("POST", `experiments/${id}/reorder`, { before });
    await refresh();
  } catch (error) {
    say(error);
  }
}

function open(query) {
  const given = new URLSearchParams(query);
  for (const field of filters.elements) if (field.name) field.value = given.get(field.name) || "";
  state.sort = given.get("sort") || "";
  state.sortRunning = given.get("running") || "";
  refresh().catch(say);
}

node("queue-toggle").addEventListener("click", async () => {
  try {
    await call("POST", `queue/${state.paused ? "resume" : "pause"}`);
    await refresh();
  } catch (error) {
    say(error);
  }
});
filters.addEventListener("input", (event) => {
  if (event.target.name) draw();
});
filters.addEventListener("submit", (event) => event.preventDefault());
for (const [table, kept] of [
  ["queue", "sort"],
  ["running", "sortRunning"],
])
  order.mount(
    node(table),
    () => state[kept],
    (sort) => {
      state[kept] = sort;
      draw();
    },
  );
choice.mount(refresh);
views.mount("queue", filters, address, open);
open(location.search);
repeat(refresh, 5000);
