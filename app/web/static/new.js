// A specification with its plan beside it: judged while it is written, faults with their remedy.

import { base, call, element, mark, number, say } from "./api.js";

const node = (name) => document.getElementById(name);
const form = node("submit");
const { spec } = form.elements;
let asked = 0;

function plain(found) {
  const lines = [`${found.num_blocks} blocks, ${found.num_runs} runs, ${number(found.env_steps_per_run)} env steps each`, found.evaluation, `placement ${found.placement}`];
  if (found.seconds_estimate) lines.push(`about ${Math.round(found.seconds_estimate)} s with the workers registered now`);
  if (found.waits) lines.push(`would wait: ${found.waits.text}`);
  if (found.quantity) lines.push(found.quantity);
  for (const row of found.power) lines.push(...powerLines(row));
  return [...lines, ...found.warnings.map((warning) => `warning: ${warning}`), `hash ${found.spec_hash}`].join("\n");
}

function powerLines(row) {
  const given = row.sd === null ? `with the pilot's ${row.pilot_size} blocks` : `if the SD is ${row.sd}`;
  if (row.power === null) return [`${given}: ${row.replicates} replicates cannot reach the level`];
  const need = row.needed && row.needed.plugin ? `${row.needed.plugin} to ${row.needed.upper80 || "more than 300"}` : "more than 300";
  return [`${given}: power ${row.power.toFixed(2)} at ${row.replicates} replicates; 80 % takes ${need}`];
}

// Chance that an arm is named better, over the true effect; the registered smallest effect is marked.
function curve(row, sesoi) {
  const width = 440, height = 140, left = 36, most = Math.max(...row.curve.map((point) => point.effect));
  const x = (effect) => left + (effect / most) * (width - left - 8), y = (power) => 8 + (1 - power) * (height - 30);
  const path = row.curve.map((point, index) => `${index ? "L" : "M"}${x(point.effect)} ${y(point.power)}`).join(" ");
  return element("figure", { style: { margin: "0 0 12px" } }, mark("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "power over the true effect" },
    ...[0, 0.5, 0.8, 1].flatMap((power) => [mark("line", { class: "grid", x1: left, x2: width, y1: y(power), y2: y(power) }), mark("text", { class: "soft", x: 0, y: y(power) + 4 }, `${100 * power} %`)]),
    sesoi && sesoi <= most ? mark("line", { class: "zero", x1: x(sesoi), x2: x(sesoi), y1: 8, y2: height - 22 }) : null,
    mark("path", { d: path, class: "mean", fill: "none" }), mark("text", { class: "soft", x: left, y: height - 4 }, "true effect 0"), mark("text", { class: "soft", x: width, y: height - 4, "text-anchor": "end" }, number(most))),
  element("figcaption", { class: "note" }, `Chance that the better arm is named, ${row.sd === null ? "with the pilot's scores" : `if the SD is ${row.sd}`}; the line is the smallest effect of interest.`));
}

async function plan() {
  asked += 1;
  const mine = asked;
  if (!spec.value.trim()) return;
  try {
    const found = await call("POST", "plans", spec.value);
    if (mine !== asked) return;
    node("plan-result").textContent = plain(found);
    const { sesoi } = found.spec.analysis || {};
    node("power").replaceChildren(...found.power.filter((row) => row.curve && row.curve.length > 1).map((row) => curve(row, sesoi)));
  } catch (error) {
    if (mine !== asked) return;
    node("plan-result").textContent = error.message;
    node("power").replaceChildren();
  }
}

for (const example of document.querySelectorAll("template.example")) node("example").append(element("option", { value: example.dataset.name }, example.dataset.name));
node("example").addEventListener("change", (event) => {
  const chosen = document.querySelector(`template.example[data-name="${CSS.escape(event.target.value)}"]`);
  if (chosen) { spec.value = chosen.content.textContent; plan(); }
});
spec.addEventListener("input", () => { clearTimeout(spec.timer); spec.timer = setTimeout(plan, 600); });
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const made = await call("POST", "experiments", spec.value, { "Idempotency-Key": crypto.randomUUID() });
    location.href = `${base}/experiments/${made.id}`;
  } catch (error) { say(error); node("plan-result").textContent = error.message; }
});
const carried = sessionStorage.getItem("lockstep-spec");
if (carried) {
  spec.value = carried;
  sessionStorage.removeItem("lockstep-spec");
  plan();
}
