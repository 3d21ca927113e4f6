// The experiment page: live curves, comparison, verdict and report, all over one socket with no reload.

import { ApiError, COLOURS, badge, base, call, element, say, when } from "./api.js";
import { Curves } from "./curves.js";
import { Live } from "./live.js";

const id = document.getElementById("experiment").dataset.id;
const node = (name) => document.getElementById(name);
const curves = new Curves(node("chart"));
const live = new Live(id, onFrame, onState);
const state = { arms: [], blocks: new Map(), comparisons: new Map(), rounds: 1, metric: null, shown: null, recorded: new Set() };

function onState(name, detail = "") {
  const box = node("connection");
  box.className = `badge ${name}`;
  box.textContent = detail ? `${name} ${detail}` : name;
}

async function load() {
  const experiment = await call("GET", `experiments/${id}`);
  state.rounds = experiment.rounds;
  state.arms = experiment.arms.map((arm) => arm.label);
  state.shown = experiment.shown;
  offer([state.shown.primary, state.shown.training, "train/return_mean"]);
  node("name").textContent = experiment.name;
  document.title = `${experiment.name} - Lockstep`;
  node("spec").textContent = JSON.stringify(experiment.spec, null, 2);
  showArms(experiment.arms);
  showStatus(experiment);
  showCalls();
  await showRuns();
  await showTimeline();
}

function showStatus(experiment) {
  node("status").replaceWith(Object.assign(badge(experiment.status), { id: "status" }));
  node("waiting").textContent = experiment.why_waiting ? experiment.why_waiting.text : "";
  showCauses(experiment.causes);
  const over = ["succeeded", "failed", "cancelled", "partial"].includes(experiment.status);
  node("pause").disabled = over || experiment.desired !== "run";
  node("resume").disabled = over || experiment.desired !== "pause";
  node("cancel").disabled = over;
}

function showCauses(causes) {
  node("causes").hidden = causes.length === 0;
  node("cause-list").replaceChildren(...causes.slice(0, 20).map((item) => element("li", {},
    badge(item.status), ` ${item.replicates.length > 1 ? "replicates" : "replicate"} ${item.replicates.join(", ")}, cause ${item.cause}: `,
    element("span", { class: "cause-text" }, item.text), " ",
    item.run_id ? element("button", { onclick: () => showLog(item.run_id) }, "Its log") : null)));
}

async function showLog(runId) {
  node("log-section").open = true;
  node("log-run").value = runId;
  await loadLog();
  node("log-section").scrollIntoView();
}

function showArms(arms) {
  const { field, label } = state.shown;
  node("score-name").textContent = `${label[0].toUpperCase()}${label.slice(1)}, last 10 episodes`;
  node("score-name").hidden = field === "reward";
  node("arms").tBodies[0].replaceChildren(...arms.map((arm) => element("tr", { "data-arm": arm.label },
    element("td", {}, element("span", { class: `swatch ${arm.index === 0 ? "base" : ""}`, style: { color: COLOURS[arm.index] } }), arm.label),
    element("td", {}, arm.policy), element("td", {}, arm.reward_mode),
    element("td", {}, arm.diff.map((d) => `${d.path}: ${JSON.stringify(d.base)} → ${JSON.stringify(d.value)}`).join("; ") || "nothing (base)"),
    element("td", { class: "score", hidden: field === "reward" ? "" : null }, "no data"), element("td", { class: "reward" }, "no data"))));
}

function showComparison() {
  state.arms.forEach((label) => {
    const rows = [...state.comparisons.values()].map((c) => (c.arms || []).find((arm) => arm.group_id === label)).filter(Boolean);
    const mean = (field) => {
      const values = rows.map((row) => row[field]).filter((value) => value !== null && value !== undefined);
      return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
    };
    const row = node("arms").querySelector(`tr[data-arm="${CSS.escape(label)}"]`);
    const score = mean(state.shown.field), reward = mean("reward");
    if (score !== null) row.querySelector(".score").textContent = scoreText(score);
    if (reward !== null) row.querySelector(".reward").textContent = reward.toFixed(2);
  });
}

function scoreText(score) {
  const { unit } = state.shown;
  return unit === "%" ? `${score.toFixed(1)} %` : `${score.toFixed(2)} ${unit}`.trim();
}

async function showRuns() {
  const runs = (await call("GET", `experiments/${id}/runs`)).items;
  curves.setRuns(runs, state.arms);
  node("runs").tBodies[0].replaceChildren(...runs.map((run) => element("tr", {},
    element("td", {}, element("code", {}, run.id)), element("td", {}, run.group_id), element("td", {}, String(run.replicate)),
    element("td", {}, badge(run.status), run.cause ? ` ${run.cause}: ${run.cause_text}` : ""), element("td", {}, `${run.rounds_done}`), element("td", {}, run.device || ""))));
  const choice = node("log-run");
  if (!choice.options.length) choice.append(...runs.map((run) => element("option", { value: run.id }, `${run.group_id} r${run.replicate}`)));
  const first = runs.find((run) => run.rounds_done > 0);
  if (first) await showMetrics(first.id);
}

async function showMetrics(runId) {
  const names = (await call("GET", `runs/${runId}`)).metrics;
  state.recorded = new Set(names);
  offer(names);
}

function offer(names) {
  const select = node("metric");
  const known = new Set([...select.options].map((option) => option.value));
  for (const name of new Set(names)) if (!known.has(name)) select.append(element("option", { value: name }, name));
  if (state.metric) select.value = state.metric;
}

// The registered primary once there is one; until its first evaluation its counterpart, recorded every round.
function firstMetric() {
  return state.recorded.has(state.shown.primary) ? state.shown.primary : state.shown.training;
}

async function showTimeline() {
  const { items } = await call("GET", `experiments/${id}/events?limit=2000`);
  const kept = items.filter((event) => !["round_completed", "checkpoint_saved"].includes(event.type) && event.env_id === null);
  node("timeline").replaceChildren(...kept.slice(-300).reverse().map(timelineItem));
}

function timelineItem(event) {
  return element("li", {}, element("time", { datetime: event.time }, when(event.time)), `${event.text} (${event.actor})`);
}

function showBlocks() {
  node("blocks").replaceChildren(...[...state.blocks.values()].sort((a, b) => a.replicate - b.replicate).map((block) =>
    element("div", { class: "block" }, element("strong", {}, `replicate ${block.replicate} `), badge(block.status),
      element("progress", { max: state.rounds, value: block.complete_rounds }),
      element("small", {}, `${block.complete_rounds} of ${state.rounds} rounds${block.attempt > 1 ? `, attempt ${block.attempt}` : ""}${block.cause ? `, ${block.cause}` : ""}`))));
}

function onFrame(frame) {
  if (frame.type === "snapshot") return onSnapshot(frame);
  if (frame.type === "delta") return onDelta(frame);
  if (frame.type === "truncate") return curves.truncate(frame.run, frame.from_round);
  if (frame.type === "end") return onEnd(frame);
  if (frame.event) {
    if (frame.event.env_id === null && frame.event.type !== "checkpoint_saved") node("timeline").prepend(timelineItem(frame.event));
    if (frame.type === "status" && frame.event.type === "block_status") return onBlock(frame.event);
  }
  return undefined;
}

function onSnapshot(frame) {
  state.blocks = new Map(frame.blocks.map((block) => [block.id, block]));
  curves.setRuns(frame.runs, state.arms);
  if (curves.axis === "round") {
    curves.points.clear();
    for (const series of frame.series) curves.add(series.run_id, series.x, series.x, series.mean);
  }
  state.comparisons = new Map(Object.entries(frame.comparisons));
  showComparison();
  const total = frame.series.reduce((sum, series) => sum + series.total, 0);
  const shown = frame.series.reduce((sum, series) => sum + series.shown, 0);
  node("shown").textContent = total > shown ? `${shown} of ${total} points shown (buckets).` : "";
  showBlocks();
}

function onDelta(frame) {
  for (const points of frame.points) {
    if (points.metric !== state.metric) continue;
    const x = { round: points.round, step: points.step, time: points.t }[curves.axis];
    curves.add(points.run_id, points.round, x, points.value);
  }
  for (const item of frame.rounds) {
    const block = state.blocks.get(item.block_id);
    if (block) block.complete_rounds = item.round + 1;
    state.comparisons.set(item.block_id, item.comparison);
  }
  if (frame.rounds.length) { showComparison(); showBlocks(); refreshSoon(); }
}

function onBlock(event) {
  const block = state.blocks.get(event.block_id);
  if (block) { block.status = event.status; block.cause = event.cause; block.attempt = event.payload.attempt; }
  showBlocks();
  refreshSoon();
}

function refreshSoon() {
  if (refreshSoon.timer) return;
  refreshSoon.timer = setTimeout(async () => {
    refreshSoon.timer = null;
    try { showStatus(await call("GET", `experiments/${id}`)); await showRuns(); } catch (error) { say(error); }
  }, 1000);
}

async function onEnd(frame) {
  refreshSoon();
  if (!frame.verdict) return;
  node("verdict-code").textContent = frame.verdict.replaceAll("_", " ").toLowerCase();
  node("verdict-sentence").textContent = frame.sentence;
  const link = (format) => element("a", { href: `${base}/api/v1/experiments/${id}/report?format=${format}` }, format);
  node("report-links").replaceChildren("Report: ", link("html"), " · ", link("md"), " · ", link("json"), " · ", link("csv"));
  node("verdict").hidden = false;
  node("report").src = `${base}/api/v1/experiments/${id}/report?format=html`;
  node("report-section").hidden = false;
  node("report").addEventListener("load", fitReport);
}

function fitReport() {
  const inside = node("report").contentDocument;
  if (inside) node("report").style.height = `${inside.documentElement.scrollHeight + 20}px`;
}

function choose(metric) {
  state.metric = node("metric").value = metric;
  curves.clear();
  if (curves.axis === "round") live.subscribe([metric]);
  else loadAxis();
}

async function loadAxis() {
  const query = new URLSearchParams({ metrics: state.metric, x: curves.axis });
  try {
    const { series } = await call("GET", `experiments/${id}/series?${query}`);
    for (const one of series) curves.add(one.run_id, one.x, one.x, one.mean);
    live.subscribe([state.metric]);
  } catch (error) { say(error); }
}

async function steer(action) {
  try { await call("POST", `experiments/${id}/${action}`, { reason: `${action} on the page` }); refreshSoon(); } catch (error) { say(error); }
}

async function loadLog() {
  try {
    const { items } = await call("GET", `runs/${node("log-run").value}/logs?level=debug`);
    node("log").textContent = items.map((line) => `${line.at} ${line.text}`).join("\n") || "no lines";
  } catch (error) { say(error); }
}

function showCalls() {
  const api = `${location.origin}${base}/api/v1/experiments/${id}`;
  node("calls").textContent = [`curl ${api}`, `curl '${api}/series?metrics=${state.shown.primary}'`, `curl '${api}/report?format=md'`, `lockstep watch ${id}`, `lockstep clone ${id}`].join("\n");
}

node("metric").addEventListener("change", (event) => choose(event.target.value));
node("axis").addEventListener("change", (event) => { curves.axis = event.target.value; choose(state.metric); });
node("replicates").addEventListener("change", (event) => { curves.showReplicates = event.target.checked; curves.schedule(); });
node("smoothing").addEventListener("input", (event) => { curves.smoothing = Number(event.target.value); curves.schedule(); });
for (const action of ["pause", "resume", "cancel"]) node(action).addEventListener("click", () => steer(action));
node("clone").addEventListener("click", () => { sessionStorage.setItem("lockstep-spec", node("spec").textContent); location.href = `${base}/#submit`; });
node("log-load").addEventListener("click", loadLog);

load().then(() => choose(firstMetric())).catch((error) => {
  if (error instanceof ApiError) onState("stale", error.message);
  say(error);
});
