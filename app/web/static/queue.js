// The list of experiments, the queue with its reasons, and a form to plan and submit.

import { badge, base, call, element, say, when } from "./api.js";

const node = (name) => document.getElementById(name);
const filters = node("filters");
let cursor = null;
let paused = false;

function row(item) {
  const share = Math.round(100 * item.progress.fraction);
  return element("tr", {},
    element("td", {}, element("a", { href: `${base}/experiments/${item.id}` }, element("bdi", {}, item.name)), ...item.tags.map((tag) => element("bdi", { class: "badge" }, tag))),
    element("td", {}, badge(item.status)),
    element("td", {}, element("progress", { max: 100, value: share }), ` ${share} %`),
    element("td", {}, String(item.num_arms)), element("td", {}, String(item.progress.blocks)),
    element("td", {}, element("bdi", {}, item.owner)), element("td", {}, when(item.created_at)));
}

async function list(append = false) {
  const query = new URLSearchParams({ limit: 50 });
  for (const [name, value] of new FormData(filters)) if (value) query.set(name, value);
  if (append && cursor) query.set("cursor", cursor);
  const page = await call("GET", `experiments?${query}`);
  const body = node("experiments").tBodies[0];
  if (!append) body.replaceChildren();
  body.append(...page.items.map(row));
  cursor = page.next;
  node("more").hidden = cursor === null;
  node("empty").hidden = body.rows.length > 0;
}

async function queue() {
  const document_ = await call("GET", "queue");
  paused = document_.paused;
  node("queue-state").textContent = paused ? "(paused)" : "";
  node("queue-toggle").textContent = paused ? "Resume queue" : "Pause queue";
  node("queue").tBodies[0].replaceChildren(...document_.items.slice(0, 100).map((item) => element("tr", {},
    element("td", {}, String(item.position)),
    element("td", {}, element("a", { href: `${base}/experiments/${item.experiment_id}` }, item.experiment_id)),
    element("td", {}, String(item.replicate)), element("td", {}, item.why_waiting.text))));
}

async function refresh() {
  try { await Promise.all([cursorIsFirst() ? list() : null, queue()]); } catch (error) { say(error); }
}

function cursorIsFirst() {
  return node("experiments").tBodies[0].rows.length <= 50;
}

function powerLines(row_) {
  const given = row_.sd === null ? `with the pilot's ${row_.pilot_size} blocks` : `if the SD is ${row_.sd}`;
  if (row_.power === null) return [`${given}: ${row_.replicates} replicates cannot reach the level`];
  const need = row_.needed && row_.needed.plugin ? `${row_.needed.plugin} to ${row_.needed.upper80 || "more than 300"}` : "more than 300";
  const lines = [`${given}: power ${row_.power.toFixed(2)} at ${row_.replicates} replicates; 80 % takes ${need}`];
  for (const point of row_.curve) {
    const bar = "#".repeat(Math.round(30 * point.power)).padEnd(30, ".");
    lines.push(`  true effect ${String(point.effect).padEnd(8)} ${bar} named better in ${Math.round(100 * point.power)} %`);
  }
  return lines;
}

async function plan() {
  const result = node("plan-result");
  try {
    const found = await call("POST", "plans", node("submit").elements.spec.value);
    const lines = [`${found.num_blocks} blocks, ${found.num_runs} runs, ${found.env_steps_per_run} env steps each`, found.evaluation, `placement ${found.placement}`];
    if (found.seconds_estimate) lines.push(`about ${Math.round(found.seconds_estimate)} s with the workers registered now`);
    if (found.waits) lines.push(`would wait: ${found.waits.text}`);
    if (found.quantity) lines.push(found.quantity);
    for (const row_ of found.power) lines.push(...powerLines(row_));
    result.textContent = [...lines, ...found.warnings.map((warning) => `warning: ${warning}`), `hash ${found.spec_hash}`].join("\n");
  } catch (error) { result.textContent = error.message; }
  result.hidden = false;
}

filters.addEventListener("input", () => { clearTimeout(filters.timer); filters.timer = setTimeout(() => list().catch(say), 250); });
node("more").addEventListener("click", () => list(true).catch(say));
node("plan").addEventListener("click", plan);
node("queue-toggle").addEventListener("click", async () => {
  try { await call("POST", `queue/${paused ? "resume" : "pause"}`); await queue(); } catch (error) { say(error); }
});
node("submit").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const made = await call("POST", "experiments", event.target.elements.spec.value, { "Idempotency-Key": crypto.randomUUID() });
    location.href = `${base}/experiments/${made.id}`;
  } catch (error) { say(error); }
});

const carried = sessionStorage.getItem("lockstep-spec");
if (carried) {
  node("submit").elements.spec.value = carried;
  sessionStorage.removeItem("lockstep-spec");
  node("submit").scrollIntoView();
}
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, 5000);
